"""Adds a record up: how long the ranks communicated, and the table of groups and collectives."""

import dataclasses
import statistics

from vccl.replay.files import Call, Job, Operation, RankRecord, Tensor
from vccl.replay.matching import SharedGroup, columns, shared_groups

# Bytes of an element, by torch's names of dtypes. The others have one.
_BYTES = {
    "Short": 2, "UInt16": 2, "Half": 2, "BFloat16": 2, "Int": 4, "UInt32": 4, "Float": 4, "ComplexHalf": 4,
    "Long": 8, "UInt64": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
# The longest buffer of these has a part for each rank, one of which stays where it is.
_SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def bytes_of(call: Call) -> int:
    """Returns the bytes of the longer side of a call, which is what nccl-tests calls the size."""

    def side(tensors: tuple[Tensor, ...]) -> int:
        return sum(tensor.elements * _BYTES.get(tensor.dtype, 1) for tensor in tensors)

    return max(side(call.inputs), side(call.outputs))


def bus_factor(name: str, size: int) -> float:
    """Returns the factor from algorithm bandwidth to bus bandwidth in a group of `size` ranks."""
    if name.startswith("all_reduce"):
        return 2 * (size - 1) / size
    return (size - 1) / size if name.startswith(_SHARED_OUT) else 1.0


@dataclasses.dataclass
class Row:
    """The calls of one name in one group. Times are seconds, of which ``waited`` is for the last rank."""

    group: str
    size: int
    name: str
    count: int
    bytes: int
    seconds: float
    waited: float

    @property
    def bus_bandwidth(self) -> float | None:
        """Returns bytes a second, from when the last rank has come, or None if nothing was moved."""
        moved = self.seconds - self.waited
        return self.bytes * bus_factor(self.name, self.size) / moved if moved > 0 and self.bytes else None


def rows(job: Job) -> list[Row]:
    """Returns a row for each group and collective, and for the messages of each group."""
    found = []
    for group in shared_groups(job):
        sums: dict[str, Row] = {}
        for operations in columns(job, group):
            _add(sums, group, job, operations)
        _add_messages(sums, group, job)
        found += list(sums.values())
    return found


def _add(sums: dict[str, Row], group: SharedGroup, job: Job, operations: dict[int, Operation]) -> None:
    timed = {
        rank: (op.started, op.completed) for rank, op in operations.items() if op.started and op.completed
    }
    call = max((op.call for op in operations.values()), key=bytes_of)
    row = sums.setdefault(call.name, Row(group.label, len(group.key.ranks), call.name, 0, 0, 0.0, 0.0))
    row.count += 1
    row.bytes += bytes_of(call)
    if not timed:
        return
    mean = statistics.fmean(end - start for start, end in timed.values())
    row.seconds += mean * 1e-9
    if len(timed) == len(group.key.ranks):
        # All ranks of a host have one clock. Those of several hosts are compared by the time of the day.
        shift = {rank: job.ranks[rank].wall_ns for rank in timed}
        last = max(start + shift[rank] for rank, (start, _) in timed.items())
        waits = [max(0, last - start - shift[rank]) for rank, (start, _) in timed.items()]
        row.waited += min(mean, statistics.fmean(waits)) * 1e-9


def _add_messages(sums: dict[str, Row], group: SharedGroup, job: Job) -> None:
    for rank, serial in group.serials.items():
        for op in job.ranks[rank].operations:
            if op.call.group != serial or not op.call.message or op.call.batch:
                continue
            row = sums.setdefault(
                op.call.name, Row(group.label, len(group.key.ranks), op.call.name, 0, 0, 0.0, 0.0)
            )
            row.count += 1
            row.bytes += bytes_of(op.call)
            if op.started and op.completed:
                row.seconds += (op.completed - op.started) * 1e-9


def communication_seconds(record: RankRecord) -> float:
    """Returns for how long at least one operation of the rank was running."""
    spans = sorted((op.started, op.completed) for op in record.operations if op.started and op.completed)
    total, reached = 0, None
    for start, end in spans:
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = end if reached is None else max(reached, end)
    return total * 1e-9


def job_communication_seconds(job: Job) -> float:
    """Returns the mean of communication_seconds() over the ranks."""
    return statistics.fmean(communication_seconds(record) for record in job.ranks.values())


def span_seconds(record: RankRecord) -> float:
    """Returns the time from the first start to the last end."""
    starts = [op.started for op in record.operations if op.started]
    ends = [op.completed for op in record.operations if op.completed]
    return (max(ends) - min(starts)) * 1e-9 if starts and ends else 0.0


def table(job: Job) -> str:
    """Returns the rows as a table, and a line for the whole."""
    heads = ("GROUP", "RANKS", "CALL", "COUNT", "BYTES", "TIME", "WAITED", "BUS BANDWIDTH")
    cells = [heads]
    for row in rows(job):
        bandwidth = row.bus_bandwidth
        cells.append(
            (
                row.group, str(row.size), row.name, f"{row.count:,}", f"{row.bytes:,}",
                f"{row.seconds * 1e3:.1f} ms", f"{row.waited * 1e3:.1f} ms",
                f"{bandwidth * 1e-9:.2f} GB/s" if bandwidth else "",
            )
        )  # fmt: skip
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    span = statistics.fmean(span_seconds(record) for record in job.ranks.values())
    operations = sum(len(record.operations) for record in job.ranks.values())
    lines.append("")
    lines.append(
        f"{len(job.ranks)} of {job.size} ranks, {operations:,} operations. A rank communicated for "
        f"{job_communication_seconds(job) * 1e3:.1f} ms of {span * 1e3:.1f} ms."
    )
    return "\n".join(line.rstrip() for line in lines)
