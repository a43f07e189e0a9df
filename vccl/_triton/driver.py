"""The driver that makes the cards Triton's device: ``triton.runtime.driver.active``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from triton.backends import Backend, backends
from triton.backends.amd.compiler import HIPOptions
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver as config

from vccl import _C
from vccl._device_type import device_type

# The GPU whose rules the kernels' options and types are checked by, where the cards do not pose as one.
_ARCH = 80
_WARP = 32


class CardBackend(CUDABackend):
    """Checks options as Triton's compiler for CUDA does, for cards that do not pose as CUDA."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Returns whether a target is a card under its own name."""
        return bool(target.backend == "vdev")

    def parse_options(self, opts: dict[str, Any]) -> Any:
        """Returns the options of a kernel. Those of AMD's GPUs are options, too, since programs try them."""
        options = super().parse_options(opts)
        for name in HIPOptions.__dataclass_fields__.keys() & opts.keys() - vars(options).keys():
            object.__setattr__(options, name, opts[name])
        return options


class _Utils:
    """What Triton's own drivers ask the device's library."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        """Returns the properties of a card, under Triton's names. Frequencies are in kHz."""
        properties = _C.device_properties(device)
        profile = properties.profile
        return {
            "max_shared_mem": profile.get("shared_memory_per_multiprocessor", 164 << 10),
            "max_num_regs": 65536,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": _WARP,
            "sm_clock_rate": profile.get("clock_rate", 1_000_000),
            "mem_clock_rate": profile.get("memory_clock_rate", 1_000_000),
            "mem_bus_width": profile.get("memory_bus_width", 256),
        }


class CardDriver(DriverBase):
    """Triton's device is the current card, and its stream the card's current stream."""

    def __init__(self) -> None:
        self.utils = _Utils()
        module = self.get_device_interface()
        self.get_device_capability = module.get_device_capability
        self.get_current_device = _C.current_device
        self.set_current_device = module.set_device

    @classmethod
    def is_active(cls) -> bool:
        """Returns whether there are cards."""
        return _C.device_count() > 0

    def get_current_stream(self, device: int) -> int:
        """Returns the handle of a card's current stream."""
        return int(self.get_device_interface().current_stream(device).native_handle)

    def get_current_target(self) -> Any:
        """Returns what kernels are compiled for on a GPU, by which programs choose configurations."""
        if device_type() != "cuda":
            return GPUTarget(device_type(), _ARCH, _WARP)
        major, minor = self.get_device_capability(self.get_current_device())
        return GPUTarget("cuda", major * 10 + minor, _WARP)

    def get_active_torch_device(self) -> torch.device:
        """Returns the current card."""
        return torch.device(device_type(), self.get_current_device())

    def get_device_interface(self) -> Any:
        """Returns ``torch.vdev``, or ``torch.cuda`` where the cards pose as CUDA."""
        return getattr(torch, device_type())

    def get_benchmarker(self) -> Callable[..., Any]:
        """Returns the function that times kernels."""
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Returns the memory that is overwritten before each measurement, of which a card needs none."""
        return torch.empty(1, dtype=torch.int32, device=device_type())

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Overwrites the memory of get_empty_cache_for_benchmark()."""
        cache.zero_()

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        """Raises NotImplementedError: no launcher is compiled."""
        raise NotImplementedError("Virtual cards have no compiled launcher for Triton's kernels.")


def activate() -> None:
    """Makes the cards Triton's device, unless the machine has a GPU that torch uses beside them."""
    if device_type() != "cuda" and torch.cuda.is_available():
        return
    backends.setdefault("vccl", Backend(CardBackend, CardDriver))
    config.set_active(CardDriver())


def is_active() -> bool:
    """Returns whether Triton's device is a card."""
    return isinstance(config.active, CardDriver)
