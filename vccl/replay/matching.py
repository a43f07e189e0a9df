"""Puts the operations of all ranks side by side: which are the same collective, and which differ."""

import collections
import dataclasses
from collections.abc import Iterator

from vccl.replay.files import Call, Group, Job, Operation, RankRecord

# Collectives that every rank calls with the same number of elements.
_SAME_SIZE = ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "gather", "scatter")
_SAME_INPUTS = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced")
_SAME_OUTPUTS = ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
# What must be the same on all ranks afterwards.
_EQUAL_OUTPUTS = ("all_reduce", "all_reduce_coalesced", "broadcast", "all_gather", "all_gather_into_tensor",
                  "all_gather_into_tensor_coalesced", "all_gather_coalesced")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GroupKey:
    """A group as all of its ranks know it. ``turn`` counts the groups of the same name and ranks."""

    name: str
    ranks: tuple[int, ...]
    turn: int = 0


@dataclasses.dataclass
class SharedGroup:
    """A group of the job: what it is called, and its number in the process of each rank that has it."""

    key: GroupKey
    label: str
    serials: dict[int, int] = dataclasses.field(default_factory=dict)


def shared_groups(job: Job) -> list[SharedGroup]:
    """Returns the groups of the job, in the order in which the lowest rank of each has made them."""
    found: dict[GroupKey, SharedGroup] = {}
    for rank, record in job.ranks.items():
        turns: collections.Counter[tuple[str, tuple[int, ...]]] = collections.Counter()
        for serial, group in sorted(record.groups.items()):
            named = (group.name, group.ranks)
            key = GroupKey(*named, turns[named])
            turns[named] += 1
            found.setdefault(key, SharedGroup(key, _label(group))).serials[rank] = serial
    return list(found.values())


def _label(group: Group) -> str:
    described = group.description if group.description != "undefined" else ""
    return described or group.name or "unnamed"


def collectives(record: RankRecord, serial: int) -> list[list[Operation]]:
    """Returns the collectives of a group as this rank has called them, each with the calls of its batch.

    Those that were part of a graph come last.
    """
    by_sequence: dict[int, list[Operation]] = {}
    for operation in record.operations:
        call = operation.call
        if call.group == serial and not call.message and not call.batch:
            by_sequence.setdefault(operation.sequence, []).append(operation)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def describe(calls: list[Call]) -> str:
    return " and ".join(str(call) for call in calls[:3]) + (" and more" if len(calls) > 3 else "")


def _signature(call: Call) -> tuple[object, ...]:
    """Returns what the ranks of a collective have in common."""
    sizes: tuple[object, ...] = ()
    tensors = call.inputs or call.outputs
    if call.name in _SAME_SIZE:
        # The root of a gather has outputs, too, and that of a scatter inputs.
        tensors = call.outputs if call.name == "scatter" else call.inputs
        sizes = tuple(tensor.elements for tensor in tensors)
    elif call.name in _SAME_INPUTS:
        sizes = tuple(tensor.elements for tensor in call.inputs)
    elif call.name in _SAME_OUTPUTS:
        sizes = tuple(tensor.elements for tensor in call.outputs)
    return call.name, call.root, call.reduction, tuple(tensor.dtype for tensor in tensors[:1]), sizes


def _ranks_text(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def differences(job: Job) -> list[str]:
    """Returns how the ranks differ in what they have called: of each group the first difference, as a text.

    A group whose records have lost operations is left out, because nobody knows what is missing there.
    """
    found = []
    lost = {rank for rank, record in job.ranks.items() if record.lost or record.unrecorded}
    for group in shared_groups(job):
        if lost & set(group.key.ranks):
            continue
        found += _difference(job, group)
    return found + _unpaired_messages(job, lost)


def _difference(job: Job, group: SharedGroup) -> list[str]:
    rows = {rank: collectives(job.ranks[rank], serial) for rank, serial in group.serials.items()}
    for rank in group.key.ranks:
        rows.setdefault(rank, [])
    longest = max(map(len, rows.values()), default=0)
    for place in range(longest):
        calls = {rank: [op.call for op in row[place]] for rank, row in rows.items() if place < len(row)}
        kinds: dict[tuple[object, ...], list[int]] = {}
        for rank, called in calls.items():
            kinds.setdefault(tuple(_signature(call) for call in called), []).append(rank)
        if len(kinds) > 1:
            says = [f"{_ranks_text(ranks)} called {describe(calls[ranks[0]])}" for ranks in kinds.values()]
            return [f"Collective {place + 1} of group {group.label}: {', and '.join(says)}."]
        absent = [rank for rank in group.key.ranks if rank not in calls]
        if absent:
            said = f"{_ranks_text(sorted(calls))} called {describe(next(iter(calls.values())))}"
            return [
                f"Collective {place + 1} of group {group.label}: {said}, and {_ranks_text(absent)} did not "
                "call it."
            ]
    return []


def _unpaired_messages(job: Job, lost: set[int]) -> list[str]:
    """Returns which messages have no other end. A receive from any rank counts for the rank that it got."""
    counts: dict[tuple[GroupKey, int, int, int], list[int]] = {}
    labels = {}
    for group in shared_groups(job):
        labels[group.key] = group.label
        if lost & set(group.key.ranks):
            continue
        for rank, serial in group.serials.items():
            own = group.key.ranks.index(rank)
            for operation in job.ranks[rank].operations:
                call = operation.call
                peer = call.peer if call.peer >= 0 else operation.peer
                if call.group != serial or not call.message or call.batch or peer < 0:
                    continue
                ends = (own, peer) if call.sends else (peer, own)
                counts.setdefault((group.key, *ends, call.tag), [0, 0])[0 if call.sends else 1] += 1
    return [
        f"Messages of group {labels[key]} from rank {key.ranks[source]} to rank {key.ranks[target]} with tag "
        f"{tag}: {sent} sent, and {received} received."
        for (key, source, target, tag), (sent, received) in counts.items()
        if sent != received
    ]


def content_differences(job: Job) -> list[str]:
    """Returns where ranks have other elements than they must have, by the hashes of the record.

    The outputs of an all_reduce, an all_gather and a broadcast must be equal, and a message must be received
    as it was sent. Only the first difference of each group is told.
    """
    found = []
    for group in shared_groups(job):
        rows = {rank: collectives(job.ranks[rank], serial) for rank, serial in group.serials.items()}
        if len(rows) < 2:
            continue
        for place, operations in enumerate(_columns(rows), 1):
            first = next(iter(operations.values()))
            hashes: dict[str, list[int]] = {}
            for rank, operation in operations.items():
                if operation.output_hash and operation.completed is not None:
                    hashes.setdefault(operation.output_hash, []).append(rank)
            if first.call.name in _EQUAL_OUTPUTS and len(hashes) > 1:
                said = ", and ".join(f"{_ranks_text(ranks)} {value}" for value, ranks in hashes.items())
                found.append(
                    f"The outputs of {first.call}, collective {place} of group {group.label}, differ: {said}."
                )
                break
    return found + _altered_messages(job)


def _columns(rows: dict[int, list[list[Operation]]]) -> Iterator[dict[int, Operation]]:
    """Yields each call of each collective with the operation of every rank that has it."""
    for place in range(max(map(len, rows.values()), default=0)):
        present = {rank: row[place] for rank, row in rows.items() if place < len(row)}
        for call in range(max(map(len, present.values()))):
            yield {rank: ops[call] for rank, ops in present.items() if call < len(ops)}


def columns(job: Job, group: SharedGroup) -> Iterator[dict[int, Operation]]:
    """Yields each collective of a group with the operation of every rank that has called it."""
    return _columns({rank: collectives(job.ranks[rank], serial) for rank, serial in group.serials.items()})


def _altered_messages(job: Job) -> list[str]:
    found = []
    for group in shared_groups(job):
        sent: dict[tuple[int, int, int], list[Operation]] = {}
        received: dict[tuple[int, int, int], list[Operation]] = {}
        for rank, serial in group.serials.items():
            own = group.key.ranks.index(rank)
            for operation in job.ranks[rank].operations:
                call = operation.call
                if call.group != serial or not call.message or call.batch:
                    continue
                if call.sends:
                    sent.setdefault((own, call.peer, call.tag), []).append(operation)
                else:
                    received.setdefault((operation.peer, own, call.tag), []).append(operation)
        for (source, target, tag), sends in sent.items():
            for number, (one, other) in enumerate(
                zip(sends, received.get((source, target, tag), []), strict=False), 1
            ):
                if one.input_hash and other.output_hash and one.input_hash != other.output_hash:
                    ranks = group.key.ranks
                    found.append(
                        f"Message {number} of group {group.label} from rank {ranks[source]} to rank "
                        f"{ranks[target]} with tag {tag} was received with other elements than it was sent."
                    )
                    break
    return found


def has_hashes(job: Job) -> bool:
    return any(op.input_hash for record in job.ranks.values() for op in record.operations)
