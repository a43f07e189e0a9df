"""Lets ``torch.from_dlpack`` and its relatives take tensors of vdev.

``Tensor.__dlpack_device__`` compares the device type with the literal "privateuse1", which is the name of no
renamed backend, and raises. Torch's C++ side knows the device as kDLExtDev.
"""

import enum
from collections.abc import Callable

import torch

from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='`torch.from_dlpack` of a card\'s tensor raises "Unknown device type vdev"',
    until="torch compares the device with the backend's name",
    upstream=("pytorch/pytorch#195815",),
)


@PATCH.replaces("torch:Tensor.__dlpack_device__", "(self)")
def _dlpack_device(
    original: Callable[..., tuple[enum.IntEnum, int]], self: torch.Tensor
) -> tuple[enum.IntEnum, int]:
    if self.device.type != "vdev":
        return original(self)
    from torch.utils.dlpack import DLDeviceType

    return DLDeviceType.kDLExtDev, self.device.index
