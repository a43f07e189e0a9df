"""Makes the calls of a replay, with buffers of their own."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

# Torch's names of dtypes in C++, as a record has them.
DTYPES = {
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "UInt16": torch.uint16, "UInt32": torch.uint32, "UInt64": torch.uint64, "Half": torch.float16,
    "Float": torch.float32, "Double": torch.float64, "BFloat16": torch.bfloat16, "Bool": torch.bool,
    "ComplexHalf": torch.complex32, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    "Float8_e5m2": torch.float8_e5m2, "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2fnuz": torch.float8_e5m2fnuz, "Float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "Float8_e8m0fnu": torch.float8_e8m0fnu,
}  # fmt: skip
# Calls that overwrite the tensors that they read.
_IN_PLACE = ("all_reduce", "all_reduce_coalesced", "all_reduce of sparse tensors", "broadcast", "reduce")
# Calls whose equal chunks a record notes as the one tensor that they make up.
_CHUNKED = ("all_gather", "gather", "reduce_scatter", "scatter")

Buffers = tuple[list[torch.Tensor], list[torch.Tensor]]


class BufferPool:
    """Hands out the buffers of calls. Equal calls that do not overlap share theirs.

    They hold zeros, which no reduction makes grow.
    """

    def __init__(self) -> None:
        self._free: dict[str, list[Buffers]] = {}

    def take(self, call: dict[str, Any], device: torch.device, size: int) -> tuple[str, Buffers]:
        """Returns buffers for a call in a group of `size` ranks, and the key that give_back() takes."""
        key = json.dumps([call["name"], call["inputs"], call["outputs"], str(device), size])
        free = self._free.setdefault(key, [])
        return key, free.pop() if free else _make_buffers(call, device, size)

    def give_back(self, key: str, buffers: Buffers) -> None:
        """Call this once the call is over."""
        self._free[key].append(buffers)


def _make_buffers(call: dict[str, Any], device: torch.device, size: int) -> Buffers:
    def tensors(listed: list[tuple[str, list[int]]]) -> list[torch.Tensor]:
        made = []
        for dtype, shape in listed:
            if dtype not in DTYPES:
                raise ValueError(f"{call['name']}: the dtype {dtype} of the record has no name here")
            made.append(torch.zeros(shape, dtype=DTYPES[dtype], device=device))
        if call["name"] in _CHUNKED and len(made) == 1 and size > 1 and len(listed[0][1]) > 0:
            return list(made[0].unbind())
        return made

    name = call["name"]
    if name == "all_reduce of sparse tensors":
        dtype, shape = call["inputs"][0]
        return [torch.zeros(shape, dtype=DTYPES[dtype], device=device).to_sparse()], []
    # Of these only one side is a list of chunks.
    single = {"all_gather": "inputs", "gather": "inputs", "reduce_scatter": "outputs", "scatter": "outputs"}
    sides = {}
    for side in ("inputs", "outputs"):
        listed = call[side]
        if single.get(name) == side:
            sides[side] = [torch.zeros(shape, dtype=DTYPES[dtype], device=device) for dtype, shape in listed]
        else:
            sides[side] = tensors(listed)
    if name in _IN_PLACE:
        return sides["inputs"], []
    return sides["inputs"], sides["outputs"]


def _reduction(call: dict[str, Any]) -> Any:
    name = call["reduction"] or "SUM"
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(call["factor"])
    return getattr(dist.ReduceOp, name)


def _options(kind: str, call: dict[str, Any]) -> Any:
    options = getattr(c10d, kind)()
    options.asyncOp = True
    if hasattr(options, "rootRank"):
        options.rootRank = max(0, call["root"])
    if hasattr(options, "reduceOp"):
        options.reduceOp = _reduction(call)
    return options


def launch(group: dist.ProcessGroup, call: dict[str, Any], buffers: Buffers) -> Any:
    """Makes the call, as torch.distributed would with ``async_op=True``, and returns its Work.

    There is none if the calls of a batch are being collected.
    """
    inputs, outputs = buffers
    return _CALLS[call["name"]](group, call, inputs, outputs)


def _all_gather_coalesced(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    count = len(inputs)
    lists = [outputs[at : at + count] for at in range(0, len(outputs), count)]
    return group.allgather_coalesced(lists, inputs, _options("AllgatherOptions", call))


def _gather(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    return group.gather([outputs] if outputs else [], inputs, _options("GatherOptions", call))


def _gather_single(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    output = outputs[0] if outputs else inputs[0].new_empty(0)
    return group.gather_single(output, inputs[0], _options("GatherOptions", call))


def _scatter(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    return group.scatter(outputs, [inputs] if inputs else [], _options("ScatterOptions", call))


def _all_to_all_single(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    splits = call["output_splits"], call["input_splits"]
    return group.alltoall_base(outputs[0], inputs[0], *splits, _options("AllToAllOptions", call))


def _recv(group: Any, call: Any, inputs: Any, outputs: Any) -> Any:
    if call["peer"] < 0:
        return group.recv_anysource(outputs, call["tag"])
    return group.recv(outputs, call["peer"], call["tag"])


_CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "all_reduce": lambda g, c, i, o: g.allreduce(i, _options("AllreduceOptions", c)),
    "all_reduce of sparse tensors": lambda g, c, i, o: g.allreduce(i, _options("AllreduceOptions", c)),
    "all_reduce_coalesced": lambda g, c, i, o: g.allreduce_coalesced(
        i, _options("AllreduceCoalescedOptions", c)
    ),
    "broadcast": lambda g, c, i, o: g.broadcast(i, _options("BroadcastOptions", c)),
    "reduce": lambda g, c, i, o: g.reduce(i, _options("ReduceOptions", c)),
    "all_gather": lambda g, c, i, o: g.allgather([o], i, _options("AllgatherOptions", c)),
    "all_gather_into_tensor": lambda g, c, i, o: g._allgather_base(
        o[0], i[0], _options("AllgatherOptions", c)
    ),
    "all_gather_into_tensor_coalesced": lambda g, c, i, o: g.allgather_into_tensor_coalesced(
        o, i, _options("AllgatherOptions", c)
    ),
    "all_gather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "gather_single": _gather_single,
    "scatter": _scatter,
    "reduce_scatter": lambda g, c, i, o: g.reduce_scatter(o, [i], _options("ReduceScatterOptions", c)),
    "reduce_scatter_tensor": lambda g, c, i, o: g._reduce_scatter_base(
        o[0], i[0], _options("ReduceScatterOptions", c)
    ),
    "reduce_scatter_tensor_coalesced": lambda g, c, i, o: g.reduce_scatter_tensor_coalesced(
        o, i, _options("ReduceScatterOptions", c)
    ),
    "all_to_all": lambda g, c, i, o: g.alltoall(o, i, _options("AllToAllOptions", c)),
    "all_to_all_single": _all_to_all_single,
    "barrier": lambda g, c, i, o: dist.barrier(group=g, async_op=True),
    "send": lambda g, c, i, o: g.send(i, c["peer"], c["tag"]),
    "recv": _recv,
}
