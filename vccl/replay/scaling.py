"""Scales a replay to another number of ranks, where the groups of the job are regular.

The ranks of a regular job are blocks of equal length: each group lies within a block, and every block has the
same (tensor and pipeline parallelism), or it has the same places of every block (data parallelism). A scaled
replay has more or fewer blocks. Groups within a block stay as they are, and the others grow or shrink with
the number of blocks.
"""

import dataclasses
import math

from vccl.replay.files import Call, Job, RecordError, Tensor
from vccl.replay.matching import GroupKey, shared_groups
from vccl.replay.plan import Roles, check_known

# What happens to a call whose group changes its size. The parameters and gradients of a model stay as large,
# so the chunks of an all_gather and a reduce_scatter change, and so does what a rank sends to each peer.
_WHOLE_OUTPUT = ("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced")
_WHOLE_INPUT = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
_UNCHANGED = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_reduce of sparse tensors",
    "broadcast",
    "reduce",
    "barrier",
)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """How a group lies in the blocks: within one, or at places of every one."""

    inner: bool
    places: tuple[int, ...]  # in a block


def scaled_roles(job: Job, ranks: int) -> Roles:
    """Returns the roles of a replay on `ranks` ranks.

    Raises:
        RecordError: the groups of the job are not regular, or `ranks` is no multiple of a block.
    """
    if missing := [rank for rank in range(job.size) if rank not in job.ranks]:
        raise RecordError(f"The record has no file of rank {missing[0]}, so it cannot be scaled")
    groups = shared_groups(job)
    for group in groups:
        check_known(group)
    keys = [group.key for group in groups]
    block = _block(job, keys)
    if ranks % block:
        raise RecordError(
            f"The ranks of the job are blocks of {block} (each has the same groups inside), so a replay has "
            f"a multiple of {block} ranks, and not {ranks}"
        )
    return _roles(job, block, ranks)


def _block(job: Job, keys: list[GroupKey]) -> int:
    """Returns the smallest length of blocks that explains all groups."""
    for block in range(1, job.size // 2 + 1):
        if job.size % block == 0 and _explains(job, keys, block):
            return block
    named = ", ".join(sorted({f"{list(key.ranks)}" for key in keys})[:6])
    raise RecordError(
        f"The groups of the job are not regular ({named}): no division of its {job.size} ranks into equal "
        "blocks has each group within a block, and in all blocks alike, or at the same places of every "
        "block, with all messages within blocks. Replay it on as many ranks as it had"
    )


def _shape_of(ranks: tuple[int, ...], block: int, size: int) -> _Shape | None:
    places = tuple(sorted({rank % block for rank in ranks}))
    every = tuple(place + begin for begin in range(0, size, block) for place in places)
    if ranks == every:
        return _Shape(False, places)
    if len({rank // block for rank in ranks}) == 1:
        return _Shape(True, tuple(rank % block for rank in ranks))
    return None


def _explains(job: Job, keys: list[GroupKey], block: int) -> bool:
    inner: dict[_Shape, dict[int, int]] = {}  # how often each block has a group of that shape
    for key in keys:
        shape = _shape_of(key.ranks, block, job.size)
        if shape is None:
            return False
        if shape.inner:
            blocks = inner.setdefault(shape, {})
            blocks[key.ranks[0] // block] = blocks.get(key.ranks[0] // block, 0) + 1
    count = job.size // block
    if any(len(blocks) != count or len(set(blocks.values())) != 1 for blocks in inner.values()):
        return False
    return _messages_stay_within(job, block)


def _messages_stay_within(job: Job, block: int) -> bool:
    for rank, record in job.ranks.items():
        for operation in record.operations:
            call = operation.call
            peer = call.peer if call.peer >= 0 else operation.peer
            if call.message and not call.batch and peer >= 0:
                members = record.groups[call.group].ranks
                if members[peer] // block != rank // block:
                    return False
    return True


def _roles(job: Job, block: int, ranks: int) -> Roles:
    had, has = job.size // block, ranks // block
    groups: list[list[int]] = []
    places: dict[tuple[int, int], int] = {}
    sizes: list[tuple[int, int]] = []  # of each group: in the job, and in the replay
    members: list[tuple[tuple[int, ...], list[int]]] = []
    records = [rank // block % had * block + rank % block for rank in range(ranks)]

    def add(old: tuple[int, ...], new: list[int], serials: dict[int, int], shift: int | None) -> None:
        groups.append(new)
        members.append((old, new))
        sizes.append((len(old), len(new)))
        for rank in new:
            role = records[rank] if shift is None else rank - shift
            places[rank, serials[role]] = len(groups) - 1

    for group in shared_groups(job):
        old = group.key.ranks
        shape = _shape_of(old, block, job.size)
        assert shape is not None
        if not shape.inner:
            new = [place + begin for begin in range(0, ranks, block) for place in shape.places]
            add(old, new, group.serials, None)
            continue
        own = old[0] // block
        for copy in range(own, has, had):
            shift = (copy - own) * block
            add(old, [rank + shift for rank in old], group.serials, shift)

    def scaled(call: Call, place: int) -> Call:
        return _scaled(call, *sizes[place], _new_numbers(members[place]))

    def peer(rank: int, place: int, number: int) -> int:
        old, new = members[place]
        # Both ends of a message lie in one block.
        return new.index(rank // block * block + old[number] % block)

    return Roles(records, groups, places, scaled, peer)


def _new_numbers(members: tuple[tuple[int, ...], list[int]]) -> dict[int, int]:
    """Returns the numbers in the new group of those of the old one, as far as their ranks are there."""
    old, new = members
    if len(old) == len(new):
        return {number: number for number in range(len(old))}
    return {number: new.index(rank) for number, rank in enumerate(old) if rank in new}


def _scaled(call: Call, had: int, has: int, numbers: dict[int, int]) -> Call:
    """Returns a call of a group of `had` ranks as it is in one of `has` ranks."""
    if had == has:
        return call
    changes: dict[str, object] = {}
    if call.root >= 0:
        changes["root"] = numbers.get(call.root, call.root % has)
    if call.message:
        return call
    if call.input_splits or call.output_splits or call.name in ("all_to_all", "all_gather_coalesced"):
        raise RecordError(f"{call} cannot be scaled: it names what each of {had} ranks gets, not of {has}")
    if call.name in _WHOLE_OUTPUT:
        changes["inputs"], changes["outputs"] = _chunked(call.inputs, call.outputs, had, has)
    elif call.name in _WHOLE_INPUT:
        changes["outputs"], changes["inputs"] = _chunked(call.outputs, call.inputs, had, has)
    elif call.name == "all_to_all_single":
        changes["inputs"] = tuple(_rounded(tensor, has) for tensor in call.inputs)
        changes["outputs"] = tuple(_rounded(tensor, has) for tensor in call.outputs)
    elif call.name in ("gather", "gather_single"):
        changes["outputs"] = tuple(_times(tensor, had, has) for tensor in call.outputs)
    elif call.name == "scatter":
        changes["inputs"] = tuple(_times(tensor, had, has) for tensor in call.inputs)
    elif call.name not in _UNCHANGED and not call.batch:
        raise RecordError(f"{call} cannot be scaled")
    return dataclasses.replace(call, **changes)  # type: ignore[arg-type]


def _chunked(
    chunks: tuple[Tensor, ...], wholes: tuple[Tensor, ...], had: int, has: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns flat chunks and wholes of the same number of elements, rounded up to whole chunks."""
    if len(chunks) != len(wholes):
        raise RecordError(
            f"A call with {len(wholes)} chunks of unequal sizes cannot be scaled from {had} ranks"
        )
    new_chunks, new_wholes = [], []
    for chunk, whole in zip(chunks, wholes, strict=True):
        elements = math.ceil(whole.elements / has)
        new_chunks.append(Tensor(chunk.dtype, (elements,)))
        new_wholes.append(Tensor(whole.dtype, (has, elements) if has > 1 else (elements,)))
    return tuple(new_chunks), tuple(new_wholes)


def _rounded(tensor: Tensor, has: int) -> Tensor:
    return Tensor(tensor.dtype, (math.ceil(tensor.elements / has) * has,))


def _times(tensor: Tensor, had: int, has: int) -> Tensor:
    """Returns the buffer that has a chunk for each rank, one of which lies in each row."""
    elements = tensor.elements // had
    return Tensor(tensor.dtype, (has, elements) if has > 1 else (elements,))
