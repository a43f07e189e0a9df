"""Makes Lightning use the cards.

    import lightning
    import vccl.integrations.lightning
    trainer = lightning.Trainer(accelerator="vdev", devices=2, strategy="ddp")

Importing this module registers the accelerator "vdev" and the strategies "fsdp_vdev" and "single_vdev". It
also puts ``DDPStrategy`` of this module in the place of Lightning's in the strategies called "ddp...":
Lightning's makes a stream of CUDA for every device that is not the CPU. On other devices both do the same.

``DDPStrategy`` and ``FSDPStrategy`` take the arguments of Lightning's classes. They are those of the package
``lightning``, or of ``pytorch_lightning`` if only that is installed; the strings work with both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from vccl import vdev
from vccl.integrations._cards import cards_of
from vccl.integrations._needs import needs


def _accelerator(pl: Any) -> Any:
    """Returns the accelerator for Lightning, which is the module ``pl``."""
    base: Any = pl.accelerators.Accelerator

    class VdevAccelerator(base):
        """Tells Lightning about the cards."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "vdev":
                raise ValueError(
                    f"Lightning's strategy takes the device {device}, although the accelerator is vdev. "
                    'For one card, ask for strategy="single_vdev": "auto" takes the CPU then.'
                )
            vdev.set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return vdev.memory_stats(device)

        def teardown(self) -> None:
            vdev.empty_cache()

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            return cards_of(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("vdev", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return vdev.device_count()

        @staticmethod
        def is_available() -> bool:
            return vdev.is_available()

        @staticmethod
        def name() -> str:
            return "vdev"

    return VdevAccelerator


def _on_cards(scaler: Any, kind: Any) -> Any:
    """Returns the scaler, or one of that kind if it is for CUDA: torch has switched it off then."""
    return scaler if scaler is None or scaler._device == "vdev" else kind("vdev")


def _adapt_precision(plugin: Any) -> None:
    """Makes a plugin of mixed precision autocast on the cards. Lightning has made it for CUDA."""
    precision = str(getattr(plugin, "precision", ""))
    if not precision.endswith("-mixed"):
        return
    if hasattr(plugin, "device"):
        if plugin.device == "cuda":
            plugin.device = "vdev"
            plugin.scaler = _on_cards(plugin.scaler, torch.amp.GradScaler)
    else:  # FSDP's names CUDA in its method
        dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
        plugin.forward_context = functools.partial(torch.autocast, "vdev", dtype=dtype)
        plugin.scaler = _on_cards(plugin.scaler, ShardedGradScaler)


def _with_precision(strategy: Any) -> Any:
    """Returns a subclass of a strategy that adapts its plugin of precision, if the accelerator is vdev."""

    class OnCards(strategy):
        @property
        def precision_plugin(self) -> Any:
            return super().precision_plugin

        @precision_plugin.setter
        def precision_plugin(self, plugin: Any) -> None:
            if self.accelerator is not None and self.accelerator.name() == "vdev":
                _adapt_precision(plugin)
            strategy.precision_plugin.fset(self, plugin)

    return OnCards


def _ddp(pl: Any) -> Any:
    base: Any = _with_precision(pl.strategies.DDPStrategy)

    class DDPStrategy(base):
        """Lightning's, without its stream of CUDA."""

        def _setup_model(self, model: torch.nn.Module) -> Any:
            if self.root_device.type != "vdev":
                return super()._setup_model(model)
            return DistributedDataParallel(model, device_ids=[self.root_device.index], **self._ddp_kwargs)

        def _register_ddp_hooks(self) -> None:
            if self.root_device.type != "vdev":
                super()._register_ddp_hooks()
            elif self._ddp_comm_hook is not None:
                hook = self._ddp_comm_hook
                if self._ddp_comm_wrapper is not None:
                    hook = self._ddp_comm_wrapper(hook)
                self.model.register_comm_hook(state=self._ddp_comm_state, hook=hook)

    return DDPStrategy


def _fsdp(pl: Any) -> Any:
    base: Any = _with_precision(pl.strategies.FSDPStrategy)

    class FSDPStrategy(base):
        """Lightning's, with a mesh of cards."""

        strategy_name = "fsdp_vdev"

        def setup_environment(self) -> None:
            sizes = self.kwargs.pop("device_mesh", None)
            super().setup_environment()
            if sizes is not None:
                self.kwargs["device_mesh"] = (
                    init_device_mesh("vdev", sizes) if isinstance(sizes, tuple) else sizes
                )

    return FSDPStrategy


def _single(pl: Any) -> Any:
    base: Any = _with_precision(pl.strategies.SingleDeviceStrategy)

    class SingleDeviceStrategy(base):
        """Lightning's, on the card that ``devices`` names."""

        strategy_name = "single_vdev"
        parallel_devices: list[torch.device] | None = None  # Lightning sets it.

        @property
        def root_device(self) -> torch.device:
            return self.parallel_devices[0] if self.parallel_devices else torch.device("vdev")

    return SingleDeviceStrategy


def _register(pl: Any) -> tuple[Any, Any, Any]:
    """Registers everything with Lightning, which is the module ``pl``. Returns the classes of this module."""
    accelerator, ddp, fsdp, single = _accelerator(pl), _ddp(pl), _fsdp(pl), _single(pl)
    for kind in (accelerator, ddp, fsdp, single):
        # Strategies that spawn processes pickle themselves, and pickle looks for the class by its name.
        kind.__qualname__ = f"{kind.__name__}_of_{pl.__name__.replace('.', '_')}"
        globals()[kind.__qualname__] = kind
    accelerators, strategies = pl.accelerators.AcceleratorRegistry, pl.strategies.StrategyRegistry
    accelerators.register("vdev", accelerator, description="virtual cards", override=True)
    for name, entry in list(strategies.items()):
        if entry["strategy"] is pl.strategies.DDPStrategy:
            strategies.register(name, ddp, entry["description"], override=True, **entry["init_params"])
    strategies.register("fsdp_vdev", fsdp, "FSDP on virtual cards", override=True)
    strategies.register("single_vdev", single, "one virtual card", override=True)
    return accelerator, ddp, fsdp


_MODULES = {"pytorch_lightning": "pytorch_lightning", "lightning": "lightning.pytorch"}
_installed = [package for package in _MODULES if importlib.util.find_spec(package) is not None]
needs(_installed[-1] if _installed else "lightning", tried="2.6.6")
for _package in _installed:
    VdevAccelerator, DDPStrategy, FSDPStrategy = _register(importlib.import_module(_MODULES[_package]))
