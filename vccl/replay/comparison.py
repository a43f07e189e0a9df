"""Compares two records: whether they have the same calls, with the same elements, in the same time."""

from vccl.replay.files import Call, Job, Operation, RankRecord
from vccl.replay.matching import shared_groups
from vccl.replay.summary import job_communication_seconds


def compare(one: Job, other: Job) -> list[str]:
    """Returns the first difference of each rank and group in the calls and, with hashes, in the elements.

    Calls of different groups are not ordered, because they may overlap in another way each time.
    """
    found = []
    if one.size != other.size:
        return [f"{one.directory} has {one.size} ranks, and {other.directory} has {other.size}."]
    keys = [group.key for group in shared_groups(one)]
    others = [group.key for group in shared_groups(other)]
    if sorted(key.ranks for key in keys) != sorted(key.ranks for key in others):
        found.append(
            "The groups differ: "
            + " and ".join(str(sorted(k.ranks for k in each)) for each in (keys, others))
        )
    for rank in sorted(one.ranks.keys() & other.ranks.keys()):
        left, right = (_streams(job.ranks[rank]) for job in (one, other))
        for stream, calls in left.items():
            if stream not in right:
                if calls:
                    found.append(f"Rank {rank} has made no {_named(stream)} in {other.directory}.")
                continue
            difference = _difference(calls, right[stream])
            if difference:
                found.append(f"Rank {rank}, {_named(stream)}: {difference}")
    return found


_Stream = tuple[tuple[int, ...], int, bool]


def _streams(record: RankRecord) -> dict[_Stream, list[Operation]]:
    """Returns the operations of each group and kind. Groups of the same ranks differ in their turn."""
    turns: dict[tuple[int, ...], int] = {}
    streams: dict[int, tuple[tuple[int, ...], int]] = {}
    for serial, group in sorted(record.groups.items()):
        turn = turns[group.ranks] = turns.get(group.ranks, -1) + 1
        streams[serial] = group.ranks, turn
    found: dict[_Stream, list[Operation]] = {}
    for operation in record.operations:
        if not operation.call.batch:
            key = (*streams[operation.call.group], operation.call.message)
            found.setdefault(key, []).append(operation)
    return found


def _named(stream: _Stream) -> str:
    ranks, turn, message = stream
    again = f" (the {turn + 1}. of these)" if turn else ""
    return f"{'message' if message else 'collective'} of the group of ranks {list(ranks)}{again}"


def _signature(call: Call, operation: Operation) -> tuple[object, ...]:
    sizes = tuple((t.dtype, t.elements) for t in (*call.inputs, *call.outputs))
    peer = call.peer if call.peer >= 0 else operation.peer
    return call.name, sizes, call.root, call.reduction, call.sends, peer, call.tag, call.input_splits


def _difference(left: list[Operation], right: list[Operation]) -> str:
    for number, (one, other) in enumerate(zip(left, right, strict=False), 1):
        if _signature(one.call, one) != _signature(other.call, other):
            return f"number {number} is {one.call} and {other.call}."
        if one.state != other.state:
            return f"number {number}, {one.call}, is {one.state} and {other.state}."
        for side in ("input_hash", "output_hash"):
            hashes = getattr(one, side), getattr(other, side)
            if all(hashes) and hashes[0] != hashes[1]:
                which = "read" if side == "input_hash" else "written"
                return f"number {number}, {one.call}, has {which} other elements."
    if len(left) != len(right):
        longer = left if len(left) > len(right) else right
        first = longer[min(len(left), len(right))].call
        return f"{len(left)} and {len(right)} were made, and one of them has no {first}."
    return ""


def times(one: Job, other: Job, turns: int = 1) -> str:
    """Returns how long the ranks of both communicated, where the second has made the calls `turns` times."""
    before, after = job_communication_seconds(one), job_communication_seconds(other) / turns
    change = f" ({(after / before - 1) * 100:+.1f} %)" if before > 0 else ""
    return f"A rank communicated for {before * 1e3:.1f} ms, and for {after * 1e3:.1f} ms{change}."
