"""Makes Ray Train use the cards.

    from vccl.integrations.ray import VdevConfig
    trainer = ray.train.torch.TorchTrainer(
        train, torch_config=VdevConfig(), scaling_config=ScalingConfig(num_workers=2)
    )

Each worker has the card of its local rank, and ``ray.train.torch.get_device()`` returns it. ``prepare_model``
and ``prepare_data_loader`` use it. Ray counts no cards: a host may have at most as many workers as cards.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from vccl import vdev
from vccl.integrations._needs import needs

needs("ray", tried="2.60.0")

import ray.air._internal.device_manager as managers  # noqa: E402
import ray.train  # noqa: E402
from ray.train.torch import TorchConfig, train_loop_utils  # noqa: E402


class VdevDeviceManager(managers.TorchDeviceManager):
    """Tells a worker of Ray Train about its card."""

    def is_available(self) -> bool:
        return vdev.is_available()

    def get_devices(self) -> list[torch.device]:
        """Returns the worker's card.

        Raises:
            RuntimeError: there are fewer cards than workers on this host.
        """
        index, count = ray.train.get_context().get_local_rank(), vdev.device_count()
        if index >= count:
            raise RuntimeError(
                f"The worker {index} of this host has no card, since there are {count}. Ask for fewer "
                "workers, or set VDEV_DEVICE_COUNT."
            )
        return [torch.device("vdev", index)]

    def set_device(self, device: torch.device | int | str | None) -> None:
        vdev.set_device(device)

    def supports_stream(self) -> bool:
        return True

    def create_stream(self, device: torch.device) -> Any:
        return vdev.Stream(device)

    def get_stream_context(self, stream: Any) -> Any:
        return vdev.stream(stream)

    def get_current_stream(self) -> Any:
        return vdev.current_stream()


def _manager_of(device_type: str) -> managers.TorchDeviceManager:
    """Returns the manager of a type of devices. Ray's own function has a fixed list."""
    if device_type == "vdev":
        return VdevDeviceManager()
    return managers.get_torch_device_manager_by_device_type(device_type)


class _OnCard:
    """Surrounds the training function in a worker, which is a process of its own."""

    def __enter__(self) -> None:
        # Ray has no public way to say what manages the devices of a worker. For models it chooses once, when
        # it is first asked, and for loaders it asks about each device.
        with managers._torch_device_manager_lock:
            managers._torch_device_manager = VdevDeviceManager()
        train_loop_utils.get_torch_device_manager_by_device_type = _manager_of
        vdev.set_device(ray.train.torch.get_device())

    def __exit__(self, *error: object) -> None:
        """Leaves the card chosen, since the worker ends here."""


@dataclasses.dataclass
class VdevConfig(TorchConfig):
    """Ray's TorchConfig, with the backend vccl and with cards."""

    backend: str | None = "vccl"

    @property
    def train_func_context(self) -> Any:
        return _OnCard
