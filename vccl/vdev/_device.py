"""How the functions of torch.vdev read a device argument."""

from __future__ import annotations

import torch

from vccl import _C

DeviceLike = torch.device | str | int | None


def index_of(device: DeviceLike, optional: bool = True) -> int:
    """The card number that ``device`` means: 1 for 1, "vdev:1" or torch.device("vdev:1"); the current card
    for None and "vdev" if ``optional``.

    Raises:
        ValueError: a device of another type, or one without an index where one is needed.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device is not None and device.type != "vdev":
        raise ValueError(f"Expected a vdev device, but got: {device}")
    if device is None or device.index is None:
        if not optional:
            raise ValueError(f"Expected a vdev device with an index or an integer, but got: {device}")
        return _C.current_device()
    return device.index
