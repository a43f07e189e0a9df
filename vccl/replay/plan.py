"""Makes the plan of a replay: for each rank the calls in their order, and what each of them waits for."""

import dataclasses
from collections.abc import Callable
from typing import Any

from vccl.replay.files import Call, Job, Operation, RankRecord, RecordError
from vccl.replay.matching import SharedGroup, shared_groups

# The calls that a replay can make again (vccl/replay/calls.py makes them).
KNOWN = frozenset(
    (
        "all_reduce", "all_reduce_coalesced", "all_reduce of sparse tensors", "broadcast", "reduce",
        "all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_coalesced",
        "gather", "gather_single", "scatter", "reduce_scatter", "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_all_single", "barrier", "send", "recv",
    )
)  # fmt: skip


MESSAGES = ("send", "recv")
GAPS = ("compute", "sleep")  # what a rank of a replay may do while the job computed


@dataclasses.dataclass
class Step:
    """What a rank launches together: one call, or those of a batch.

    ``waits`` are the numbers of earlier steps that were over before this one has started. ``gap_ns`` is the
    time from then, or from the start of the step before, to the start: what the rank has computed.
    """

    calls: list[dict[str, Any]]
    is_batch: bool
    waits: list[int]
    gap_ns: int


@dataclasses.dataclass
class RankPlan:
    """What one rank of the replay does. ``lingers``: it does not leave, as its record does not say that."""

    steps: list[Step]
    lingers: bool
    offset_ns: int  # from the first start in the job to this rank's


@dataclasses.dataclass
class Plan:
    """A replay. ``groups`` are the ranks of each group; a call names its group by the place in the list."""

    size: int
    groups: list[list[int]]
    ranks: list[RankPlan]
    skipped: int = 0

    def as_dicts(self) -> list[dict[str, Any]]:
        """Returns what each rank has to know, by rank."""
        for_all = {
            "size": self.size,
            "groups": self.groups,
            "used_by_all": self._used_by_all(-1),
            "used_by_all_on_cards": self._used_by_all(0),
        }
        return [{**for_all, "rank": dataclasses.asdict(rank)} for rank in self.ranks]

    def _used_by_all(self, from_card: int) -> list[int]:
        """Returns the places of the groups of which each rank calls collectives on one card.

        `from_card` is 0, or -1 if the CPU counts as a card, too.
        """
        cards: list[dict[int, set[int]]] = [{} for _ in self.groups]
        for rank, its in enumerate(self.ranks):
            for call in (call for step in its.steps for call in step.calls):
                if call["name"] not in MESSAGES and call["card"] >= from_card:
                    cards[call["group"]].setdefault(rank, set()).add(call["card"])
        return [
            place
            for place, ranks in enumerate(self.groups)
            if all(len(cards[place].get(rank, ())) == 1 for rank in ranks)
        ]


@dataclasses.dataclass
class Roles:
    """Whose record each rank of a replay plays, and in which groups (vccl/replay/scaling.py scales them)."""

    records: list[int]  # by the rank of the replay
    groups: list[list[int]]
    # From (rank of the replay, Group.serial of its record) to the place in `groups`.
    places: dict[tuple[int, int], int]
    # Changes a call to the size that its group has in the replay, which is at that place in `groups`.
    scaled: Callable[[Call, int], Call]
    # Takes a rank of the replay, the place of a group and a number in the group of the record. Returns the
    # number in the group of the replay.
    peer: Callable[[int, int, int], int]


def recorded_roles(job: Job) -> Roles:
    """Returns the roles of a replay that is as large as the job was."""
    groups = shared_groups(job)
    for group in groups:
        check_known(group)
    places = {
        (rank, serial): place for place, group in enumerate(groups) for rank, serial in group.serials.items()
    }
    return Roles(
        list(range(job.size)), [list(group.key.ranks) for group in groups], places,
        lambda call, _: call, lambda rank, place, peer: peer,
    )  # fmt: skip


def check_known(group: SharedGroup) -> None:
    """Raises RecordError for a group whose ranks are not all in the record."""
    for rank, serial in group.serials.items():
        if not group.key.ranks or rank not in group.key.ranks:
            raise RecordError(
                f"The record does not list all ranks of group {group.label} (number {serial} of rank "
                f"{rank}): it lists 250, or all of a regular group. Such a group cannot be replayed"
            )


def make_plan(job: Job, roles: Roles, skip: frozenset[str] = frozenset()) -> Plan:
    """Returns the plan of a replay.

    Args:
        job: the record.
        roles: whose record each rank plays.
        skip: names of calls that are left out.

    Raises:
        RecordError: the record has calls that cannot be made again.
    """
    plan = Plan(len(roles.records), roles.groups, [])
    starts = [
        record.wall_ns + min(op.started or op.created for op in record.operations)
        for record in job.ranks.values()
        if record.operations
    ]
    first = min(starts, default=0)
    for rank, role in enumerate(roles.records):
        record = job.ranks.get(role)
        if record is None:  # it has left no record, and is missing in the replay, too
            plan.ranks.append(RankPlan([], True, 0))
            continue
        units = []
        for unit in record.units():
            calls = [op for op in unit if op.call.name not in skip]
            plan.skipped += len(unit) - len(calls)
            if calls:
                units.append(calls)
        for unit in units:
            for operation in unit:
                _check(record, operation)
        plan.ranks.append(_rank_plan(record, units, rank, roles, first))
    return plan


def _check(record: RankRecord, operation: Operation) -> None:
    call = operation.call
    said = f"Operation {operation.number} of rank {record.rank}, {call},"
    if call.name not in KNOWN:
        raise RecordError(
            f"{said} cannot be made again: it is no collective or message of torch.distributed. "
            f"--skip '{call.name}' leaves such calls out, on all ranks"
        )
    if call.cut:
        raise RecordError(
            f"{said} cannot be made again: the record does not list all of its tensors, because it is part "
            f"of a graph, or was overwritten before it was read. --skip '{call.name}' leaves such calls out"
        )
    if call.splits_lost:
        raise RecordError(f"{said} cannot be made again: its splits were overwritten before they were read")


def _rank_plan(
    record: RankRecord, units: list[list[Operation]], rank: int, roles: Roles, first: int
) -> RankPlan:
    ordered = _in_order(units)
    steps: list[Step] = []
    open_steps: dict[int, int] = {}  # steps that nobody has waited for, with their ends
    before = 0
    for number, (start, unit) in enumerate(ordered):
        waits = sorted((end, step) for step, end in open_steps.items() if end <= start)
        since = max([before, *(end for end, _ in waits)])
        gap = max(0, start - since) if number else 0
        calls = []
        for operation in unit:
            place = roles.places[rank, operation.call.group]
            # A receive from any rank takes the message that it has taken before.
            peer = operation.call.peer if operation.call.peer >= 0 else operation.peer
            peer = roles.peer(rank, place, peer) if peer >= 0 else -1
            calls.append(_call_of(roles.scaled(operation.call, place), place, peer))
        steps.append(Step(calls, unit[0].call.in_batch, [step for _, step in waits], gap))
        for _, step in waits:
            del open_steps[step]
        if unit[-1].completed is not None:
            open_steps[number] = unit[-1].completed
        before = start
    offset = record.wall_ns + ordered[0][0] - first if ordered else 0
    return RankPlan(steps, not record.finished, max(0, offset))


def _in_order(units: list[list[Operation]]) -> list[tuple[int, list[Operation]]]:
    """Returns the units in the order in which they have started, with these times.

    What was called early and had to wait on its stream comes late, because other ranks may have needed what
    came in between. Calls of one group and kind keep their order. What has not started comes last.
    """
    last: dict[tuple[int, bool], int] = {}
    never = max((op.started or op.created for unit in units for op in unit), default=0)
    timed = []
    for unit in units:
        operation = unit[0]
        start = operation.started or (never if not operation.over else operation.created)
        kind = (operation.call.group, operation.call.message)
        start = last[kind] = max(start, last.get(kind, start))
        timed.append((start, operation.number, unit))
    timed.sort(key=lambda entry: entry[:2])
    return [(start, unit) for start, _, unit in timed]


def _call_of(call: Call, place: int, peer: int) -> dict[str, Any]:
    """Returns what vccl/replay/calls.py needs of a call, as JSON has it."""
    return {
        "name": call.name,
        "group": place,
        "card": call.card,
        "inputs": [[tensor.dtype, list(tensor.shape)] for tensor in call.inputs],
        "outputs": [[tensor.dtype, list(tensor.shape)] for tensor in call.outputs],
        "input_splits": list(call.input_splits),
        "output_splits": list(call.output_splits),
        "root": call.root,
        "reduction": call.reduction,
        "factor": call.factor if call.factor == call.factor else 1.0,
        "peer": peer,
        "tag": call.tag,
    }
