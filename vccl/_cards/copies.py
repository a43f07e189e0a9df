"""The functions of ``torch._C`` below ``torch.nn.parallel.comm``, and so below ``nn.DataParallel``.

One process passes tensors between several of its cards. A copy between two cards comes after the tasks of
the current streams of both, and a task that is put on either stream later finds the copy done.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from vccl._device_type import device_type

__all__ = [
    "_broadcast",
    "_broadcast_coalesced",
    "_broadcast_out",
    "_gather",
    "_gather_out",
    "_scatter",
    "_scatter_out",
]

Streams = Sequence[torch.Stream | None] | None


def install() -> None:
    """Gives ``torch._C`` the functions. A torch that was built with CUDA has its own, which GPUs keep."""
    for name in __all__:
        ours, theirs = globals()[name], getattr(torch._C, name, None)
        setattr(torch._C, name, ours if theirs is None else _by_device(ours, theirs))


def _by_device(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that calls ``ours`` if a tensor is on a card, and ``theirs`` if one is on a GPU.

    Tensors of the CPU alone go to the accelerator of the process.
    """

    @functools.wraps(ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        types = set(_device_types((args, tuple(kwargs.values()))))
        if not types & {device_type(), "cuda"}:
            accelerator = torch.accelerator.current_accelerator()
            types.add(accelerator.type if accelerator else "cuda")
        return (ours if device_type() in types else theirs)(*args, **kwargs)

    return call


def _device_types(value: Any) -> Iterator[str]:
    """Yields the types of the devices of the tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value.device.type
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _device_types(part)


def _module() -> Any:
    return torch.get_device_module(device_type())


def _card(index: int) -> torch.device:
    return torch.device(device_type(), index)


@contextlib.contextmanager
def current_streams(streams: Streams) -> Iterator[None]:
    """Makes each stream the current one of its card. None leaves a card's stream as it is."""
    with contextlib.ExitStack() as stack:
        for stream in streams or ():
            stack.enter_context(_module().stream(stream))
        yield


def copy_to(tensor: Tensor, index: int) -> Tensor:
    """Returns the tensor itself if it is on that card, otherwise a copy."""
    if index < 0:
        raise RuntimeError(f"expected the index of a card, but got {index}")
    return tensor.to(_card(index), non_blocking=True)


def check_on_cards(what: str, tensors: Sequence[Tensor]) -> None:
    """Raises RuntimeError, which names ``what``, unless there are tensors and all of them are on cards."""
    if not tensors:
        raise RuntimeError(f"{what}: expected at least one tensor")
    for position, tensor in enumerate(tensors):
        if tensor.device.type != device_type():
            raise RuntimeError(
                f"{what}: expected tensors on cards, but tensor {position} is on {tensor.device}"
            )


def check_shapes(what: str, tensor: Tensor, other: str, expected: Tensor) -> None:
    """Raises RuntimeError, which names both tensors, unless they have one shape."""
    if tensor.shape != expected.shape:
        raise RuntimeError(
            f"{what} has shape {tuple(tensor.shape)}, and {other} has shape {tuple(expected.shape)}"
        )


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [copy_to(tensor, index) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    check_on_cards("broadcast", out)
    for position, copy in enumerate(out):
        check_shapes(f"broadcast: out[{position}]", copy, "the tensor", tensor)
        copy.copy_(tensor, non_blocking=True)
    return list(out)


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """Returns the copies of each card. They are made one by one: a buffer would save nothing here."""
    if not devices:
        raise RuntimeError("broadcast_coalesced: expected at least one device")
    for position, tensor in enumerate(tensors):
        if tensor.get_device() != devices[0]:
            raise RuntimeError(
                f"broadcast_coalesced: all tensors must be on devices[0], {_card(devices[0])}, "
                f"but tensor {position} is on {tensor.device}"
            )
    return [[copy_to(tensor, index) for tensor in tensors] for index in devices]


def _scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Streams = None,
) -> list[Tensor]:
    if not devices:
        raise RuntimeError("scatter: expected at least one device")
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    elif len(chunk_sizes) != len(devices):
        raise RuntimeError(f"scatter: got {len(chunk_sizes)} chunk_sizes for {len(devices)} devices")
    else:
        chunks = tensor.split(list(chunk_sizes), dim)
    if streams is None:
        streams = [None] * len(devices)
    copies = []
    # There may be fewer chunks than devices.
    for chunk, index, stream in zip(chunks, devices, streams, strict=False):
        if stream is not None and stream.device_index != index:
            raise RuntimeError(
                f"scatter: a stream of {stream.device} was given for the device {_card(index)}"
            )
        with current_streams([stream]):
            copies.append(copy_to(chunk, index))
    return copies


def _scatter_out(
    tensor: Tensor, out: Sequence[Tensor], dim: int = 0, streams: Streams = None
) -> list[Tensor]:
    check_on_cards("scatter", out)
    chunks = tensor.split([part.size(dim) for part in out], dim)
    for position, (chunk, part) in enumerate(zip(chunks, out, strict=True)):
        check_shapes(f"scatter: out[{position}]", part, "its chunk", chunk)
        with current_streams([streams[position]] if streams else None):
            part.copy_(chunk, non_blocking=True)
    return list(out)


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    """Returns the concatenation on a card (the current one for None), or on the CPU for -1."""
    check_on_cards("gather", tensors)
    if destination is None:
        destination = _module().current_device()
    device = torch.device("cpu") if destination < 0 else _card(destination)
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    formats = {suggest_memory_format(tensor) for tensor in tensors}
    memory_format = formats.pop() if len(formats) == 1 else torch.contiguous_format
    out = torch.empty(shape, dtype=first.dtype, device=device, memory_format=memory_format)
    return _gather_out(tensors, out, dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    check_on_cards("gather", tensors)
    parts = out.split([tensor.size(dim) for tensor in tensors], dim)
    for position, (part, tensor) in enumerate(zip(parts, tensors, strict=True)):
        check_shapes(f"gather: tensor {position}", tensor, "its place in the result", part)
        part.copy_(tensor, non_blocking=True)
    return out
