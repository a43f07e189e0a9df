"""Reads the files of a record, which the spool of each rank has written (recorder/spool/lines.cpp)."""

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

VERSION = 1  # of the files that this module reads
_NAME = re.compile(r"rank-(\d+)\.jsonl")


class RecordError(Exception):
    """A record cannot be used. The text says which file, why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a call: torch's name of its dtype ("Float"), and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Call:
    """What many operations of a rank have in common. Ranks (``root``, ``peer``) are numbers in the group."""

    number: int
    name: str
    group: int  # Group.serial
    card: int  # -1: the CPU
    timeout_ms: int
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    cut: bool = False  # the tensors are not all listed
    input_splits: tuple[int, ...] = ()  # in rows
    output_splits: tuple[int, ...] = ()
    splits_lost: bool = False
    root: int = -1
    reduction: str = ""
    factor: float = 1.0  # of PREMUL_SUM; NaN if it was on a card
    message: bool = False
    sends: bool = False
    any_source: bool = False
    peer: int = -1
    tag: int = 0
    is_async: bool = False
    in_batch: bool = False
    batch: int = 0  # how many of the operations before it are the calls of this batch
    graph: bool = False  # made by the replay of a graph
    thread: str = ""
    thread_number: int = 0

    def __str__(self) -> str:
        tensors = self.inputs or self.outputs
        shown = ", ".join(str(tensor) for tensor in tensors[:2]) + (", ..." if len(tensors) > 2 else "")
        ends = f" to {self.peer}" if self.sends else f" from {self.peer}" if self.name == "recv" else ""
        return f"{self.name}({shown}){ends if self.message else ''}"


@dataclasses.dataclass
class Operation:
    """One operation of a rank. Times are ns of the file's clock, and None where they are not known."""

    number: int  # counts the operations of the process
    call: Call
    sequence: int  # of the group, for collectives and for messages
    created: int
    started: int | None = None
    completed: int | None = None
    over: bool = False  # has ended. One that is over and has no `completed` has failed
    peer: int = -1  # the source of a message, once it is known
    input_hash: str = ""
    output_hash: str = ""

    @property
    def state(self) -> str:
        """Returns ``completed``, ``failed``, or ``under way`` when the record ended."""
        if self.completed is not None:
            return "completed"
        return "failed" if self.over else "under way"


@dataclasses.dataclass
class Group:
    """A group of a rank's process. ``ranks`` are numbers in the job, by the numbers in the group."""

    serial: int
    name: str
    description: str
    rank: int
    size: int
    ranks: tuple[int, ...]
    opened: int
    closed: bool = False

    @property
    def label(self) -> str:
        described = self.description if self.description != "undefined" else ""
        return described or self.name or "unnamed"


@dataclasses.dataclass
class RankRecord:
    """What one rank has recorded, and what is wrong with it."""

    path: pathlib.Path
    rank: int
    size: int
    job: str
    host: str
    library: str
    program: str
    steady_ns: int  # where the clock of the file begins, on the steady clock of its machine
    wall_ns: int  # the same as a time since 1970
    groups: dict[int, Group] = dataclasses.field(default_factory=dict)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    finished: bool = False  # the process has ended its record itself
    lost: int = 0  # operations that the ring has lost before they were written
    unrecorded: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def units(self) -> Iterator[list[Operation]]:
        """Yields what the rank has launched together: one operation, or the calls of a batch."""
        batch: list[Operation] = []
        for operation in self.operations:
            if operation.call.in_batch:
                batch.append(operation)
            elif operation.call.batch:
                if batch:
                    yield batch
                batch = []
            else:
                yield [operation]
        if batch:
            yield batch


@dataclasses.dataclass
class Job:
    """The records of a job, by rank."""

    directory: pathlib.Path
    size: int
    ranks: dict[int, RankRecord]

    @property
    def problems(self) -> list[str]:
        found = [problem for record in self.ranks.values() for problem in record.problems]
        missing = [rank for rank in range(self.size) if rank not in self.ranks]
        if missing:
            found.append(f"{self.directory} has no record of rank {', '.join(map(str, missing))}")
        return found


def read_job(directory: str | pathlib.Path) -> Job:
    """Reads the record of a job.

    What is missing in it, such as the end of a file whose process was killed, is in ``problems``.

    Raises:
        RecordError: there is no record, it is of another version, or of several jobs, or it is damaged.
    """
    directory = pathlib.Path(directory)
    if not directory.is_dir():
        raise RecordError(f"{directory} is no directory. A record is made with VCCL_RECORD={directory}")
    paths = sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    if not paths:
        raise RecordError(f"{directory} has no file rank-0.jsonl. A record is made with VCCL_RECORD")
    ranks: dict[int, RankRecord] = {}
    for path in paths:
        record = _read_rank(path)
        ranks[record.rank] = record
    jobs = {record.job for record in ranks.values()}
    if len(jobs) > 1:
        raise RecordError(
            f"{directory} has records of {len(jobs)} jobs ({', '.join(sorted(jobs))}). Record each job in an "
            "empty directory"
        )
    size = max(record.size for record in ranks.values())
    return Job(directory, size, dict(sorted(ranks.items())))


def _read_rank(path: pathlib.Path) -> RankRecord:
    lines = path.read_bytes().split(b"\n")
    cut = lines.pop()  # empty unless the last line has no end
    if not lines:
        raise RecordError(f"{path} has not even a first line: its process was killed, or the disk was full")
    reader = _RankReader(path, _value(path, 1, lines[0]))
    for number, line in enumerate(lines[1:], 2):
        value = _value(path, number, line)
        try:
            reader.take(value)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RecordError(f"{path}, line {number} is damaged: {line[:80]!r} ({error})") from error
    if cut:
        reader.record.problems.append(f"{path} ends within a line, which is left out")
    return reader.finish()


def _value(path: pathlib.Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RecordError(f"{path}, line {number} is damaged: {line[:80]!r} ({error})") from error


class _RankReader:
    """Puts the record of a rank together from the lines of its file."""

    def __init__(self, path: pathlib.Path, header: Any) -> None:
        version = header.get("vccl_record") if isinstance(header, dict) else None
        if version != VERSION:
            writer = header.get("library", "its vccl") if isinstance(header, dict) else "its vccl"
            raise RecordError(
                f"{path} is a record of version {version}, and this vccl reads version {VERSION}. "
                f"Read it with {writer}"
            )
        try:
            self.record = RankRecord(
                path, header["rank"], header["size"], header["job"], header.get("host", ""),
                header.get("library", ""), header.get("program", ""), header["steady_ns"], header["wall_ns"],
            )  # fmt: skip
        except KeyError as error:
            raise RecordError(f"{path} has no {error} in its first line") from error
        self._calls: dict[int, Call] = {}
        self._operations: dict[int, Operation] = {}

    def take(self, value: Any) -> None:
        if isinstance(value, dict):
            if "call" in value:
                call = _call(value)
                self._calls[call.number] = call
            elif "group" in value:
                group = _group(value)
                self.record.groups[group.serial] = group
            return
        kind = value[0]
        if kind == "end":
            self._end(value)
        elif kind == "closed":
            self.record.groups[value[1]].closed = True
        elif kind == "lost":
            self.record.lost += value[1]
        elif kind == "finished":
            self.record.finished = True
            self.record.unrecorded = value[1]
        else:
            self._begin(value)

    def _begin(self, value: list[Any]) -> None:
        number, call, sequence, created = value[:4]
        operation = Operation(number, self._calls[call], sequence, created, peer=self._calls[call].peer)
        if len(value) > 4:
            operation.started, operation.completed, operation.over = value[4], value[5], True
        if len(value) > 6:
            operation.input_hash, operation.output_hash = value[6:8]
        self._operations[number] = operation
        self.record.operations.append(operation)

    def _end(self, value: list[Any]) -> None:
        operation = self._operations.get(value[1])
        if operation is None or len(value) == 2:
            self.record.problems.append(f"{self.record.path} has lost the end of operation {value[1]}")
            return
        operation.started, operation.completed, operation.peer = value[2:5]
        operation.over = True
        if len(value) > 5:
            operation.input_hash, operation.output_hash = value[5:7]

    def finish(self) -> RankRecord:
        record = self.record
        if record.lost:
            record.problems.append(
                f"{record.path} has lost {record.lost} operations, which came faster than they could be "
                "written. A larger VCCL_RECORDER_SIZE helps"
            )
        if record.unrecorded:
            record.problems.append(
                f"{record.path} leaves out {record.unrecorded} operations of too many groups"
            )
        if not record.finished:
            record.problems.append(f"{record.path} has no last line: its process was killed, or still runs")
        return record


def _tensors(values: list[Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(dtype, tuple(shape)) for dtype, shape in values)


def _call(value: dict[str, Any]) -> Call:
    plain = {
        key: value[key]
        for key in (
            "name", "group", "card", "timeout_ms", "cut", "splits_lost", "root", "reduction", "message",
            "sends", "any_source", "peer", "tag", "in_batch", "batch", "graph", "thread", "thread_number",
        )
        if key in value
    }  # fmt: skip
    return Call(
        number=value["call"],
        inputs=_tensors(value.get("inputs", [])),
        outputs=_tensors(value.get("outputs", [])),
        input_splits=tuple(value.get("input_splits", ())),
        output_splits=tuple(value.get("output_splits", ())),
        factor=float(value.get("factor", "1")),
        is_async=value.get("async", False),
        **plain,
    )


def _group(value: dict[str, Any]) -> Group:
    return Group(
        value["group"], value.get("name", ""), value.get("description", ""), value["rank"], value["size"],
        tuple(value.get("ranks", ())), value["opened_ns"],
    )  # fmt: skip
