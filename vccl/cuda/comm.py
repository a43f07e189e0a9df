"""The functions of ``torch._C`` below ``torch.cuda.comm``, ``torch.cuda.nccl`` and ``nn.DataParallel``.

One process passes tensors between several of its cards. A copy between two cards comes after what the
current streams of both hold, and what is put on either stream later finds the copy done.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vccl._no_gpu import NoGpuError

__all__ = [
    "_broadcast",
    "_broadcast_coalesced",
    "_broadcast_out",
    "_gather",
    "_gather_out",
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
    "_scatter",
    "_scatter_out",
]

Streams = Sequence[torch.cuda.Stream | None] | None


@contextlib.contextmanager
def _current(streams: Streams) -> Iterator[None]:
    """Makes each stream the current one of its card. None leaves a card's stream as it is."""
    with contextlib.ExitStack() as stack:
        for stream in streams or ():
            stack.enter_context(torch.cuda.stream(stream))
        yield


def _copy_to(tensor: Tensor, index: int) -> Tensor:
    """Returns the tensor itself if it is on that card, otherwise a copy."""
    if index < 0:
        raise RuntimeError(f"expected the index of a card, but got {index}")
    return tensor.to(torch.device("cuda", index), non_blocking=True)


def _check_on_cards(what: str, tensors: Sequence[Tensor]) -> None:
    if not tensors:
        raise RuntimeError(f"{what}: expected at least one tensor")
    for position, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                f"{what}: expected tensors on cards, but tensor {position} is on {tensor.device}"
            )


# ---- torch.cuda.comm


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_copy_to(tensor, index) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    _check_on_cards("broadcast", out)
    for position, copy in enumerate(out):
        if copy.shape != tensor.shape:
            raise RuntimeError(
                f"broadcast: out[{position}] has shape {tuple(copy.shape)}, "
                f"and the tensor has shape {tuple(tensor.shape)}"
            )
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
                f"broadcast_coalesced: all tensors must be on devices[0], cuda:{devices[0]}, "
                f"but tensor {position} is on {tensor.device}"
            )
    return [[_copy_to(tensor, index) for tensor in tensors] for index in devices]


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
            raise RuntimeError(f"scatter: a stream of {stream.device} was given for the device cuda:{index}")
        with _current([stream]):
            copies.append(_copy_to(chunk, index))
    return copies


def _scatter_out(
    tensor: Tensor, out: Sequence[Tensor], dim: int = 0, streams: Streams = None
) -> list[Tensor]:
    _check_on_cards("scatter", out)
    chunks = tensor.split([part.size(dim) for part in out], dim)
    for position, (chunk, part) in enumerate(zip(chunks, out, strict=True)):
        if part.shape != chunk.shape:
            raise RuntimeError(
                f"scatter: out[{position}] has shape {tuple(part.shape)}, "
                f"and its chunk has shape {tuple(chunk.shape)}"
            )
        with _current([streams[position]] if streams else None):
            part.copy_(chunk, non_blocking=True)
    return list(out)


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    """Returns the concatenation on a card (the current one for None), or on the CPU for -1."""
    _check_on_cards("gather", tensors)
    if destination is None:
        destination = torch.cuda.current_device()
    device = torch.device("cpu") if destination < 0 else torch.device("cuda", destination)
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    return _gather_out(tensors, torch.empty(shape, dtype=first.dtype, device=device), dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    _check_on_cards("gather", tensors)
    parts = out.split([tensor.size(dim) for tensor in tensors], dim)
    for position, (part, tensor) in enumerate(zip(parts, tensors, strict=True)):
        if part.shape != tensor.shape:
            raise RuntimeError(
                f"gather: tensor {position} has shape {tuple(tensor.shape)}, "
                f"and its place in the result has shape {tuple(part.shape)}"
            )
        part.copy_(tensor, non_blocking=True)
    return out


# ---- torch.cuda.nccl, which one process calls for all its cards

# By ncclRedOp_t.
_REDUCTIONS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    0: operator.add,
    1: operator.mul,
    2: torch.maximum,
    3: torch.minimum,
}


@contextlib.contextmanager
def _collective(what: str, tensors: Sequence[Tensor], streams: Streams, comms: object) -> Iterator[None]:
    """Checks the arguments of a collective, and makes its streams the current ones."""
    if comms is not None:
        raise NoGpuError("A communicator of torch.cuda.nccl", "Leave out the argument comms.")
    _check_on_cards(what, tensors)
    with _current(streams):
        yield


def _reduced(inputs: Sequence[Tensor], op: int, index: int) -> Tensor:
    if op not in _REDUCTIONS:
        raise RuntimeError(f"torch.cuda.nccl: {op} is not the number of a reduction, which go from 0 to 3")
    return functools.reduce(_REDUCTIONS[op], [_copy_to(tensor, index) for tensor in inputs])


def _nccl_all_reduce(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int,
    streams: Streams = None,
    comms: object = None,
) -> None:
    with _collective("all_reduce", inputs, streams, comms):
        _broadcast_out(_reduced(inputs, op, inputs[0].get_device()), outputs)


def _nccl_reduce(
    inputs: Sequence[Tensor],
    output: Tensor,
    root: int,
    op: int,
    streams: Streams = None,
    comms: object = None,
) -> None:
    with _collective("reduce", inputs, streams, comms):
        _broadcast_out(_reduced(inputs, op, inputs[root].get_device()), [output])


def _nccl_broadcast(
    inputs: Sequence[Tensor], root: int, streams: Streams = None, comms: object = None
) -> None:
    with _collective("broadcast", inputs, streams, comms):
        _broadcast_out(inputs[root], inputs)


def _nccl_all_gather(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], streams: Streams = None, comms: object = None
) -> None:
    with _collective("all_gather", outputs, streams, comms):
        for output in outputs:
            _gather_out([tensor.flatten() for tensor in inputs], output.view(-1), 0)


def _nccl_reduce_scatter(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int,
    streams: Streams = None,
    comms: object = None,
) -> None:
    with _collective("reduce_scatter", inputs, streams, comms):
        total = _reduced(inputs, op, inputs[0].get_device()).view(-1)
        _scatter_out(total, [output.view(-1) for output in outputs])
