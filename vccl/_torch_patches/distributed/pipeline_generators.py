"""Lets pipelines of torch 2.12 keep the generators of cards as they are.

Before its first step a schedule finds out the shapes of what its stages pass on, by running them. It puts the
generators back afterwards with ``torch.random.fork_rng``, which looks for those of its devices in
``torch.cuda`` unless it is told their type. Schedules of torch 2.12 tell it devices and no type. This patch
has the type taken from the devices, if they are cards. It waits until schedules are imported, because
nothing else in torch leaves the type out for devices that are not CUDA's.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch

from vccl import _device_type
from vccl._torch_patches.registry import Patch

_SCHEDULES = "torch.distributed.pipelining.schedules"

PATCH = Patch(
    __name__,
    without="the first step of a pipeline's schedule on cards looks for CUDA's generators, and raises",
    until="2.13 is the oldest torch, whose schedules name the type of their devices",
    versions="<2.13",
    after_import_of=_SCHEDULES,
)
_DEFAULT = "cuda"


@PATCH.replaces(
    "torch.random:fork_rng", "(devices=..., enabled=..., _caller=..., _devices_kw=..., device_type=...)"
)
def _fork_rng(
    original: Callable[..., AbstractContextManager[None]],
    devices: Iterable[torch.device | int | str] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str = _DEFAULT,
) -> AbstractContextManager[None]:
    if devices is not None:
        devices = list(devices)
        types = {device.type for device in devices if isinstance(device, torch.device)}
        if device_type == _DEFAULT and types == {_device_type.device_type()}:
            device_type = _device_type.device_type()
    return original(devices, enabled, _caller, _devices_kw, device_type)
