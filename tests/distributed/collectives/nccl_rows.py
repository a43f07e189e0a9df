"""What calls do with NCCL, with VCCL_STRICT=nccl and without: the rows of the table of docs/inside/nccl.md.

Each row makes one call, or a few, and says in words what came of it, or which error.
"""

import contextlib
import dataclasses
import datetime
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from vccl.testing import GROUP_TIMEOUT

SIZE = 3
LARGE = 2 << 20  # elements of a message that NCCL's buffers have no room for: 8 MiB
SMALL = 16 << 10  # elements of a message that has to wait for its receive here, but not with NCCL: 64 KiB
# How long a row waits that waits in vain, in seconds.
PATIENCE = 1.0


@dataclasses.dataclass(frozen=True)
class Place:
    """One rank, in one mode."""

    rank: int
    device: str  # its type
    strict: bool
    groups: list[Any] = dataclasses.field(default_factory=list)  # of the row

    def card(self, index: int | None = None) -> torch.device:
        return torch.device(self.device, self.rank if index is None else index)

    def tensor(self, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns a tensor of the rank's number plus one."""
        return torch.full(sizes, self.rank + 1, device=self.card()).to(dtype)

    def group(self, in_vain: bool = False) -> dist.ProcessGroup:
        """Returns a new group. `in_vain`: strict ranks wait for something in it that does not come."""
        seconds = PATIENCE if in_vain and self.strict else GROUP_TIMEOUT
        group = dist.new_group(range(SIZE), timeout=datetime.timedelta(seconds=seconds))
        self.groups.append(group)
        return group


@dataclasses.dataclass(frozen=True)
class Row:
    call: str
    # What ProcessGroupNCCL of torch 2.13, or NCCL 2.27, does: an error, which strict ranks raise word by
    # word, or something in words.
    nccl: str
    run: Callable[[Place], str | None]
    free: str
    strict: str | None = None  # if it is not what NCCL does


ROWS: list[Row] = []


def row(call: str, nccl: str, free: str, strict: str | None = None) -> Callable[[Any], Any]:
    def add(run: Callable[[Place], str | None]) -> Callable[[Place], str | None]:
        ROWS.append(Row(call, nccl, run, free, strict))
        return run

    return add


def words(error: Exception) -> str:
    """Returns the kind of the error, and what it says before it names the rank."""
    said = re.split(r" ?: rank|(?<=tensors): ", str(error))[0]
    return f"{type(error).__name__}: {said}"


def outcome(row: Row, place: Place) -> str | None:
    try:
        return row.run(place)
    except Exception as error:
        return words(error)


def meet(name: str, size: int) -> None:
    """Waits for all ranks, at the store: after a failure, a barrier would raise it."""
    store = dist.distributed_c10d._get_default_store()
    assert store is not None
    store.set(f"{name} {dist.get_rank()}", "")
    store.wait([f"{name} {rank}" for rank in range(size)], datetime.timedelta(seconds=GROUP_TIMEOUT))


def found_on(rank: int, size: int, device: str, strict: bool) -> list[str | None]:
    """Runs the rows on one rank. A row says nothing on a rank that takes no part in what it shows."""
    place = Place(rank, device, strict)
    torch.accelerator.set_device_index(rank)
    found = []
    for each in ROWS:
        found.append(outcome(each, place))
        meet(f"after {each.call}", size)
        for group in place.groups:  # what fails in them is known
            dist.distributed_c10d._abort_process_group(group)
        place.groups.clear()
    return found


def held(work: Any) -> bool:
    """Waits on the host. Returns whether the operation waited in vain."""
    try:
        work.wait(datetime.timedelta(seconds=GROUP_TIMEOUT))
    except dist.DistBackendError as error:
        if re.search(r"waited|wait for each other", str(error)) is None:
            raise
        return True
    return False


# ---- what is refused

_DTYPE = "TypeError: Input tensor data type is not supported for NCCL process group: "
_CONTIGUOUS = "ValueError: Tensors must be contiguous"


@row("all_reduce of a strided tensor", _CONTIGUOUS, "the sum")
def strided(place: Place) -> str:
    x = place.tensor(4, 6)[:, ::2]
    dist.all_reduce(x)
    return "the sum" if x.eq(6).all() else "wrong"


@row("all_reduce of int16", _DTYPE + "Short", "the sum")
def short(place: Place) -> str:
    x = place.tensor(4, dtype=torch.int16)
    dist.all_reduce(x)
    return "the sum" if x.eq(6).all() else "wrong"


@row("broadcast of uint32", _DTYPE + "UInt32", "the source's elements")
def unsigned(place: Place) -> str:
    x = place.tensor(4, dtype=torch.uint32)
    dist.broadcast(x, 0)
    return "the source's elements" if x.tolist() == [1] * 4 else "wrong"


@row("all_reduce with BAND", "ValueError: Cannot use ReduceOp.BAND with NCCL", "the bits")
def bits(place: Place) -> str:
    x = place.tensor(4, dtype=torch.int32)
    dist.all_reduce(x, op=dist.ReduceOp.BAND)
    return "the bits" if x.eq(0).all() else "wrong"


@row(
    "all_reduce of bool with AVG",
    "TypeError: Cannot use ReduceOp.AVG with boolean inputs",
    "TypeError: all_reduce: backend vccl has no AVG of bool tensors",
)
def average_of_bool(place: Place) -> str:
    dist.all_reduce(place.tensor(4, dtype=torch.bool), op=dist.ReduceOp.AVG)
    return "a mean"


@row(
    "all_reduce of float8_e4m3fn on cards before Hopper, as without VDEV_PROFILE",
    "DistBackendError: FP8 reduction support begins with sm90 capable devices",
    "the sum",
)
def float8(place: Place) -> str:
    x = place.tensor(4, dtype=torch.float8_e4m3fn)
    dist.all_reduce(x)
    return "the sum" if x.float().eq(6).all() else "wrong"


@row(
    "all_reduce with PREMUL_SUM, whose factor is a tensor of another dtype",
    "RuntimeError: expected scalar type Float but found Double",
    "the sum",
)
def factor(place: Place) -> str:
    by = torch.tensor(2.0, dtype=torch.float64, device=place.card())
    x = place.tensor(4)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(by))
    return "the sum" if x.eq(12).all() else "wrong"


@row(
    "all_reduce of a CPU tensor",
    "RuntimeError: No backend type associated with device type cpu",
    "the sum",
)
def on_the_cpu(place: Place) -> str:
    x = torch.ones(4)
    dist.all_reduce(x, group=place.group())
    return "the sum" if x.eq(SIZE).all() else "wrong"


@row(
    "recv from any rank",
    "NotImplementedError: ProcessGroupNCCL does not support recvAnysource",
    "the message",
)
def any_source(place: Place) -> str | None:
    x = place.tensor(4)
    if place.rank == 0:
        return "the message" if dist.recv(x) == 1 else "wrong"
    if place.rank == 1 and not place.strict:
        dist.send(x, 0)
    return None


@row(
    "monitored_barrier",
    "ValueError: monitored_barrier is only implemented for GLOO backend",
    "a barrier that names missing ranks",
)
def monitored(place: Place) -> str:
    dist.monitored_barrier()
    return "a barrier that names missing ranks"


@row(
    "gather into tensors of other sizes",
    "ValueError: ProcessGroupNCCL::gather: invalid tensor size at index 0 (expected [2, 3], got [6])",
    "the elements",
)
def gathered(place: Place) -> str | None:
    chunks = [place.tensor(6) for _ in range(SIZE)] if place.rank == 0 else None
    if place.strict and place.rank != 0:
        return None  # the destination alone raises, before anything moves
    dist.gather(place.tensor(2, 3), chunks)
    if chunks is None:
        return None
    return "the elements" if all(chunk.eq(i + 1).all() for i, chunk in enumerate(chunks)) else "wrong"


@row("all_to_all of int16", "RuntimeError: Unconvertible NCCL type Short", "the elements")
def exchanged(place: Place) -> str:
    chunks = [torch.empty(2, dtype=torch.int16, device=place.card()) for _ in range(SIZE)]
    dist.all_to_all(chunks, [place.tensor(2, dtype=torch.int16)] * SIZE)
    return "the elements" if [chunk[0].item() for chunk in chunks] == [1, 2, 3] else "wrong"


@row("all_to_all_single of a strided tensor", _CONTIGUOUS, "the elements")
def exchanged_strided(place: Place) -> str:
    x = torch.empty(SIZE, device=place.card())
    dist.all_to_all_single(x, place.tensor(2 * SIZE)[::2])
    return "the elements" if x.tolist() == [1, 2, 3] else "wrong"


@row(
    "all_gather_coalesced",
    "NotImplementedError: ProcessGroupNCCL does not support allgather_coalesced",
    "the elements",
)
def coalesced(place: Place) -> str:
    lists = [[torch.empty(2, device=place.card())] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [place.tensor(2)])
    return "the elements" if [chunk[0].item() for (chunk,) in lists] == [1, 2, 3] else "wrong"


@row(
    "send of a tensor with gaps",
    "ValueError: Tensors for P2P must be non-overlapping and dense",
    "the elements",
)
def sent_with_gaps(place: Place) -> str | None:
    if place.rank == 1:
        dist.send(place.tensor(8)[::2], 0)
    if place.rank == 0 and not place.strict:
        x = place.tensor(4)
        dist.recv(x, 1)
        return "the elements" if x.eq(2).all() else "wrong"
    return None


_MISTAKEN = "other elements, or unwritten ones, without an error"


@row("reduce_scatter_tensor of a strided tensor", _MISTAKEN, "the sums", _CONTIGUOUS)
def reduced_strided(place: Place) -> str:
    x = torch.empty(2, device=place.card())
    dist.reduce_scatter_tensor(x, place.tensor(4 * SIZE)[::2])
    return "the sums" if x.eq(6).all() else "wrong"


@row("all_gather into strided tensors of different sizes", _MISTAKEN, "the elements", _CONTIGUOUS)
def gathered_strided(place: Place) -> str:
    chunks = [torch.empty(2 * (i + 1), device=place.card())[::2] for i in range(SIZE)]
    dist.all_gather(chunks, place.tensor(place.rank + 1))
    return "the elements" if all(chunk.eq(i + 1).all() for i, chunk in enumerate(chunks)) else "wrong"


@row("two ranks of a group on one card", "DistBackendError: Duplicate GPU detected", "the sum")
def on_one_card(place: Place) -> str:
    x = torch.ones(4, device=place.card(0))
    dist.all_reduce(x, group=place.group())
    return "the sum" if x.eq(SIZE).all() else "wrong"


@row("send between two ranks on one card", "DistBackendError: Duplicate GPU detected", "the message")
def sent_on_one_card(place: Place) -> str | None:
    group = place.group()
    x = torch.full((SMALL,), place.rank + 1.0, device=place.card(0))
    if place.rank > 1:
        return None
    works = [dist.isend(x, 0, group=group)] if place.rank == 1 else [dist.irecv(x, 1, group=group)]
    for work in works:
        work.wait(datetime.timedelta(seconds=GROUP_TIMEOUT))
    return "the message" if x.eq(2).all() else "wrong"


@row("barrier(device_ids=[0]) on every rank", "DistBackendError: Duplicate GPU detected", "a barrier")
def barrier_on_one_card(place: Place) -> str:
    dist.barrier(group=place.group(), device_ids=[0])
    return "a barrier"


# ---- what is otherwise

_POSTED = "in the order of the calls: a tag means nothing"


@row("messages of one pair with different tags meet", _POSTED, "by their tags")
def tags(place: Place) -> str | None:
    if place.rank > 1:
        return None
    if place.rank == 1:
        works = [dist.isend(place.tensor(4) * factor, 0, tag=tag) for tag, factor in ((5, 1), (6, 10))]
    else:
        a, b = place.tensor(4), place.tensor(4)
        works = [dist.irecv(a, 1, tag=6), dist.irecv(b, 1, tag=5)]
    for work in works:
        work.wait()
    if place.rank == 1:
        return None
    return {(2.0, 20.0): _POSTED, (20.0, 2.0): "by their tags"}[a[0].item(), b[0].item()]


@row(
    "a send, and an irecv in batch_isend_irecv", "never meet: the two go over different communicators", "meet"
)
def batched_and_not(place: Place) -> str | None:
    group = place.group(in_vain=True)
    dist.all_reduce(place.tensor(1), group=group)  # makes the group's communicator
    torch.accelerator.synchronize()
    x = place.tensor(SMALL)
    if place.rank > 1:
        return None
    if place.rank == 1:
        with contextlib.suppress(dist.DistBackendError):  # it waits for the first message of the two
            held(dist.isend(x, 0, group=group))
        return None
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1, group=group)])
    return "never meet: the two go over different communicators" if held(work) else "meet"


def sent_first(place: Place, elements: int) -> bool:
    """Two ranks send to each other before they receive. Returns whether they wait in vain."""
    group = place.group(in_vain=elements == LARGE)
    if place.rank > 1:
        return False
    x, y = place.tensor(elements), place.tensor(elements)
    works = [dist.isend(x, 1 - place.rank, group=group), dist.irecv(y, 1 - place.rank, group=group)]
    failed = [held(work) for work in reversed(works)]
    assert any(failed) or y.eq(2 - place.rank).all()
    return any(failed)


@row(
    "two ranks isend() 8 MiB to each other, and irecv() afterwards",
    "hang: the messages of a pair have one order",
    "arrive",
)
def large_first(place: Place) -> str | None:
    failed = sent_first(place, LARGE)
    return None if place.rank > 1 else "hang: the messages of a pair have one order" if failed else "arrive"


@row("two ranks isend() 64 KiB to each other, and irecv() afterwards", "arrive: NCCL buffers 4 MiB", "arrive")
def small_first(place: Place) -> str | None:
    failed = sent_first(place, SMALL)
    arrived = "arrive: NCCL buffers 4 MiB" if place.strict else "arrive"
    return None if place.rank > 1 else "stand" if failed else arrived


@row(
    "two ranks send() 64 KiB to each other, and recv() afterwards",
    "arrive: NCCL buffers 4 MiB",
    "an error: the ranks wait for each other",
)
def blocking_first(place: Place) -> str | None:
    group = place.group(in_vain=True)
    if place.rank > 1:
        return None
    x, y = place.tensor(SMALL), place.tensor(SMALL)
    try:
        dist.send(x, 1 - place.rank, group=group)
        dist.recv(y, 1 - place.rank, group=group)
        assert y.eq(2 - place.rank).all()
    except dist.DistBackendError as error:
        assert "wait for each other" in str(error), error
        return "an error: the ranks wait for each other"
    return "arrive: NCCL buffers 4 MiB"


_MEETS = "hang: the first message of two ranks makes their communicator"


@row("isend to the next rank, then irecv from the one before, as the first messages", _MEETS, "the messages")
def first_ring(place: Place) -> str:
    group = place.group(in_vain=True)
    x, y = place.tensor(SMALL), place.tensor(SMALL)
    before = (place.rank - 1) % SIZE
    try:
        works = [dist.isend(x, (place.rank + 1) % SIZE, group=group), dist.irecv(y, before, group=group)]
    except dist.DistBackendError as error:
        assert "the greeting that two ranks exchange before their first message" in str(error), error
        return _MEETS
    for work in works:
        work.wait()
    return "the messages" if y.eq(before + 1).all() else "wrong"


@row(
    "batch_isend_irecv of two ranks of three, as the group's first call",
    "waits for the third rank: the call makes the communicator",
    "the message",
)
def first_batch(place: Place) -> str | None:
    group = place.group(in_vain=True)
    if place.rank > 1:
        return None
    x = place.tensor(SMALL)
    call = dist.P2POp(dist.isend if place.rank == 1 else dist.irecv, x, 1 - place.rank, group=group)
    try:
        (work,) = dist.batch_isend_irecv([call])
    except dist.DistBackendError as error:
        assert "rank 2" in str(error), error
        return "waits for the third rank: the call makes the communicator"
    work.wait(datetime.timedelta(seconds=GROUP_TIMEOUT))
    return "the message" if x.eq(2).all() else "wrong"


_MEMORY = "moves memory, whatever the sizes say"


@row("a transposed tensor, sent to a contiguous one", _MEMORY, "elements by index")
def transposed(place: Place) -> str | None:
    plain = torch.arange(6.0, device=place.card()).view(2, 3)
    if place.rank == 1:
        dist.send(plain.t().contiguous().t(), 0)
    if place.rank != 0:
        return None
    got = torch.empty(2, 3, device=place.card())
    dist.recv(got, 1)
    in_memory = plain.t().reshape(2, 3)
    return {True: "elements by index", False: _MEMORY if got.equal(in_memory) else "wrong"}[got.equal(plain)]


@row("a channels_last tensor, broadcast to contiguous ones", _MEMORY, "elements by index")
def channels_last(place: Place) -> str:
    plain = torch.arange(16.0, device=place.card()).view(1, 2, 2, 4)
    x = plain.to(memory_format=torch.channels_last) if place.rank == 0 else torch.empty_like(plain)
    dist.broadcast(x, 0)
    if place.rank == 0 or x.equal(plain):
        return _MEMORY if place.strict else "elements by index"
    return _MEMORY if x.equal(plain.permute(0, 2, 3, 1).reshape(plain.shape)) else "wrong"


_PASSED_OVER = "returns at once: a collective without elements is passed over"


@row(
    "all_reduce without elements, which one rank alone calls",
    _PASSED_OVER,
    "DistBackendError, which names both calls",
)
def empty(place: Place) -> str:
    group = place.group()
    dist.all_reduce(place.tensor(1), group=group)
    if place.rank == 0:
        dist.all_reduce(place.tensor(0), group=group)
    x = place.tensor(4)
    try:
        dist.all_reduce(x, group=group)
        return _PASSED_OVER if x.eq(6).all() else "wrong"
    except dist.DistBackendError as error:
        assert "0 elements" in str(error) and "4 elements" in str(error), error
        return "DistBackendError, which names both calls"


@row("reduce, on the other ranks", "leaves the tensor as it is", "leaves the tensor as it is")
def reduced(place: Place) -> str:
    x = place.tensor(4)
    dist.reduce(x, 0)
    assert x.eq(6 if place.rank == 0 else place.rank + 1).all()
    return "leaves the tensor as it is"


@row(
    "reading the results of a failed operation",
    "any numbers, if the process goes on",
    "DistBackendError at the read",
    "DistBackendError at the read",
)
def failed(place: Place) -> str:
    group = place.group()
    x = place.tensor(3 + place.rank)
    try:
        dist.all_reduce(x, group=group)
        x.tolist()
    except dist.DistBackendError:
        return "DistBackendError at the read"
    return "numbers"
