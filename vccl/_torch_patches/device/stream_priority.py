"""Gives streams of cards the attribute ``priority``, as ``torch.cuda.Stream`` has it.

``torch.Stream`` takes a priority and does not show it. ``torch.accelerator.current_stream()`` returns objects
of that very type, so it would not return those of a derived class.
"""

import torch

from vccl import _C
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="`torch.Stream(device=..., priority=-1).priority` raises AttributeError",
    until="`torch.Stream` has the attribute",
)


def _priority(stream: torch.Stream) -> int:
    """Returns the priority of a card's stream: 0, or -1 (high)."""
    if stream.device.type != device_type():
        raise AttributeError(f"'{type(stream).__name__}' object has no attribute 'priority'")
    return _C._stream_priority(stream.device_index, stream.stream_id)


PATCH.adds("torch:Stream.priority", property(_priority))
