"""The functions of ``torch._C`` below ``torch.cuda.nccl``, which one process calls for all its cards."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vccl._cards.copies import (
    Streams,
    _broadcast_out,
    _gather_out,
    _scatter_out,
    check_on_cards,
    copy_to,
    current_streams,
)
from vccl._cards.no_gpu import NoGpuError

__all__ = [
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
]

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
    check_on_cards(what, tensors)
    with current_streams(streams):
        yield


def _reduced(inputs: Sequence[Tensor], op: int, index: int) -> Tensor:
    if op not in _REDUCTIONS:
        raise RuntimeError(f"torch.cuda.nccl: {op} is not the number of a reduction, which go from 0 to 3")
    return functools.reduce(_REDUCTIONS[op], [copy_to(tensor, index) for tensor in inputs])


def _nccl_all_reduce(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int,
    streams: Streams = None,
    comms: object = None,
) -> None:
    inputs, outputs = list(inputs), list(outputs)  # torch takes any collection, also a set
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
