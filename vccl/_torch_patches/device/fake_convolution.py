"""Tells torch.compile in which order of dimensions a convolution on a card leaves its result.

The cards run the CPU's convolutions, which return "channels last" where an argument is so. For a device that
it does not know torch expects contiguous results, and code that was compiled for those raises.
"""

from typing import TYPE_CHECKING, Any

import torch

from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

PATCH = Patch(
    __name__,
    without="compiled code with a convolution in channels last raises on a card, because the strides are not "
    "those that it was compiled for",
    until="torch asks a device how its convolutions leave their results",
    after_import_of="torch._subclasses.fake_impls",
)
PATCH.relies_on("torch._subclasses.fake_impls:conv", "(fake_mode, func, *args, **kwargs)")


@PATCH.action
def _install() -> None:
    from torch._subclasses import fake_impls

    table = fake_impls.op_implementations_dict
    for operator in [operator for operator, function in table.items() if function is fake_impls.conv]:
        table[operator] = _convolution


def _convolution(fake_mode: "FakeTensorMode", func: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Does what ``fake_impls.conv`` does, on stand-ins for the CPU if the arguments are on a card."""
    from torch._subclasses.fake_impls import conv

    cards: set[torch.device] = set()

    def as_on_cpu(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != device_type():
            return value
        cards.add(value.device)
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")

    def as_on_card(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=card)

    with fake_mode:
        args, kwargs = torch.utils._pytree.tree_map(as_on_cpu, (args, kwargs))
    result = conv(fake_mode, func, *args, **kwargs)
    if not cards:
        return result
    card = cards.pop()
    with fake_mode:
        return torch.utils._pytree.tree_map_only(torch.Tensor, as_on_card, result)
