"""Reads the device arguments of the functions of torch.vdev."""

from __future__ import annotations

import torch

from vccl import _C

DeviceLike = torch.device | str | int | None


def index_of(device: DeviceLike, optional: bool = True) -> int:
    """Returns the index of the card that ``device`` names.

    That is 1 for 1, "vdev:1" and torch.device("vdev:1"). It is the current card for None and "vdev".

    Args:
        device: the argument of the caller.
        optional: whether the device may lack an index, and may be None.

    Raises:
        TypeError: ``device`` is none of these.
        ValueError: the device has another type, or lacks an index that is not optional.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    elif device is not None and not isinstance(device, torch.device):
        raise TypeError(
            "device must be a torch.device, a str such as 'vdev:1', the index of a card or None, got "
            f"{type(device).__name__}"
        )
    if device is not None and device.type != "vdev":
        raise ValueError(f"Expected a vdev device, but got: {device}")
    if device is None or device.index is None:
        if not optional:
            raise ValueError(f"Expected a vdev device with an index or an integer, but got: {device}")
        return current_index()
    return device.index


def current_index() -> int:
    """Returns the current card of the calling thread."""
    # torch.compile can trace and guard the function of torch, which counts as a use of the device elsewhere.
    if torch.compiler.is_dynamo_compiling():
        return torch.accelerator.current_device_index()
    return _C.current_device()
