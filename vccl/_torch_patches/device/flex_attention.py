"""Lets FlexAttention run on cards. It allows the devices that it knows by name."""

from collections.abc import Callable

import torch

from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='`flex_attention` raises "FlexAttention is only supported on CUDA, CPU, HPU, or MPS devices"',
    until="FlexAttention takes every device that can run its operators",
    after_import_of="torch.nn.attention.flex_attention",
)


@PATCH.replaces("torch.nn.attention.flex_attention:_validate_device", "(query, key, value)")
def _validate_device(
    original: Callable[..., None], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    if query.device.type != device_type():
        original(query, key, value)
