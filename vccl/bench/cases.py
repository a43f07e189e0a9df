"""Defines the collectives that can be measured: the buffers, the call and the known answer of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from vccl._torch_version import renamed

_all_gather_single = renamed(dist, "all_gather_single", "all_gather_into_tensor", ">=2.13")
_reduce_scatter_single = renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor", ">=2.13")

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}

# The input repeats after this many elements, so that writing it anew brings little else into the caches.
# With a source as long as the buffer, 8 and 16 ranks took a tenth longer for 1 MiB.
PERIOD = 4096
CHECKED_AT_ONCE = 256  # periods of every chunk


@dataclass(frozen=True)
class Setting:
    """Describes one measurement as one rank sees it."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None
    device: torch.device
    dtype: torch.dtype
    op: str = "sum"
    root: int = 0
    in_place: bool = False


class Case(ABC):
    """Holds a collective with its buffers. `size` is the bytes of the longest buffer, as in nccl-tests."""

    uses_op = False
    uses_root = False
    in_place_too = False  # whether torch can do it in place and out of place
    together = True  # whether ranks take part in one call, and not each in a call of its own
    shares = False  # whether the longest buffer has a chunk for each rank; `count` is then that of one chunk

    # allocate() makes these.
    source: torch.Tensor
    input: torch.Tensor
    output: torch.Tensor

    def __init__(self, setting: Setting, size: int) -> None:
        self.setting = setting
        self.count = size // setting.dtype.itemsize
        if self.shares:
            self.count = max(1, self.count // setting.world_size)
        self.allocate()

    @property
    def size(self) -> int:
        """Returns the bytes of the longest buffer, rounded down to whole elements."""
        chunks = self.setting.world_size if self.shares else 1
        return self.count * self.setting.dtype.itemsize * chunks

    @abstractmethod
    def allocate(self) -> None:
        """Makes ``source``, ``input`` and ``output``. Each call finds ``source`` in ``input``.

        ``source`` has a row for each chunk of the input, which is the first period of that chunk.
        """

    @cached_property
    def writes(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the views that are written before each call, and what is written into each."""
        return list(in_periods(self.input, self.source))

    def reset(self) -> None:
        """Writes the buffers anew, because a training step also hands over what it has just written."""
        for periods, source in self.writes:
            periods.copy_(source)
        if not self.setting.in_place and self.output is not self.input:
            self.output.zero_()

    @abstractmethod
    def call(self) -> None:
        """Makes the call that is timed."""

    @abstractmethod
    def expected(self) -> torch.Tensor | None:
        """Returns the first period of each chunk of this rank's output, as rows of any dtype.

        Returns None if the collective leaves the output of this rank undefined.
        """

    def wrong(self) -> int:
        """Returns how many elements of this rank's output differ from the known answer."""
        expected = self.expected()
        if expected is None:
            return 0
        count = 0
        for periods, wanted in in_periods(self.output, expected):
            for some in periods.split(CHECKED_AT_ONCE, dim=1):
                count += differing(some, wanted.expand_as(some))
        return count

    def bus_factor(self) -> float:
        """Returns the factor from algorithm bandwidth to bus bandwidth, which the busiest link has."""
        # The chunk of a rank that stays with it uses no link.
        return (self.setting.world_size - 1) / self.setting.world_size if self.shares else 1.0

    def traffic(self) -> float:
        """Returns the least bytes that all ranks together have to read and write on one host."""
        return 2.0 * self.setting.world_size * self.size

    @property
    def is_root(self) -> bool:
        return self.setting.rank == self.setting.root

    def pattern(self, rank: int, chunk: int = 0) -> torch.Tensor:
        """Returns one period of what `rank` puts in for `chunk`, as a row.

        It holds small integers, so that every sum is exact in every dtype.
        """
        ramp = torch.arange(min(self.count, PERIOD), dtype=torch.int32).remainder_(8)
        return ramp.add_((rank + 3 * chunk) % 8).to(self.setting.dtype)[None]

    def patterns(self, rank: int) -> torch.Tensor:
        """Returns what `rank` puts in for all ranks, with a row for each."""
        return torch.cat([self.pattern(rank, chunk) for chunk in range(self.setting.world_size)])

    def reduced(self, chunk: int = 0) -> torch.Tensor:
        """Returns the reduction of the patterns of all ranks, as a row in float64."""
        inputs = torch.stack([self.pattern(rank, chunk).double() for rank in range(self.setting.world_size)])
        reductions: dict[str, Callable[..., torch.Tensor]] = {
            "sum": torch.sum,
            "avg": torch.mean,
            "min": torch.amin,
            "max": torch.amax,
        }
        return reductions[self.setting.op](inputs, 0)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.setting.device)

    def empty(self, chunks: int = 1) -> torch.Tensor:
        """Returns a buffer of so many chunks."""
        return torch.empty(chunks * self.count, dtype=self.setting.dtype, device=self.setting.device)


class Whole(Case):
    """Has one buffer for each rank, which the collective overwrites."""

    def allocate(self) -> None:
        self.source = self.on_device(self.pattern(self.setting.rank))
        self.input = self.output = self.empty()


class AllReduce(Whole):
    uses_op = True

    def call(self) -> None:
        dist.all_reduce(self.input, op=REDUCE_OPS[self.setting.op], group=self.setting.group)

    def expected(self) -> torch.Tensor:
        return self.reduced()

    def bus_factor(self) -> float:
        return 2 * (self.setting.world_size - 1) / self.setting.world_size


class Broadcast(Whole):
    uses_root = True

    def call(self) -> None:
        dist.broadcast(self.input, group_src=self.setting.root, group=self.setting.group)

    def expected(self) -> torch.Tensor:
        return self.pattern(self.setting.root)

    def traffic(self) -> float:
        return 2.0 * (self.setting.world_size - 1) * self.size


class Reduce(Whole):
    uses_op = uses_root = True

    def call(self) -> None:
        op = REDUCE_OPS[self.setting.op]
        dist.reduce(self.input, group_dst=self.setting.root, op=op, group=self.setting.group)

    def expected(self) -> torch.Tensor | None:
        return self.reduced() if self.is_root else None

    def traffic(self) -> float:
        return float((self.setting.world_size + 1) * self.size)


class AllGather(Case):
    """Has the `size` of the output. Every rank puts in its chunk."""

    shares = in_place_too = True

    def allocate(self) -> None:
        self.source = self.on_device(self.pattern(self.setting.rank))
        self.output = self.empty(self.setting.world_size)
        own = self.output.narrow(0, self.setting.rank * self.count, self.count)
        self.input = own if self.setting.in_place else self.empty()

    def call(self) -> None:
        _all_gather_single(self.output, self.input, group=self.setting.group)

    def expected(self) -> torch.Tensor:
        return torch.cat([self.pattern(rank) for rank in range(self.setting.world_size)])


class ReduceScatter(Case):
    """Has the `size` of the input. Every rank gets its chunk of the sum."""

    shares = in_place_too = uses_op = True

    def allocate(self) -> None:
        self.source = self.on_device(self.patterns(self.setting.rank))
        self.input = self.empty(self.setting.world_size)
        own = self.input.narrow(0, self.setting.rank * self.count, self.count)
        self.output = own if self.setting.in_place else self.empty()

    def call(self) -> None:
        op = REDUCE_OPS[self.setting.op]
        _reduce_scatter_single(self.output, self.input, op=op, group=self.setting.group)

    def expected(self) -> torch.Tensor:
        return self.reduced(self.setting.rank)

    def traffic(self) -> float:
        return float((self.setting.world_size + 1) * self.size)


class Gather(Case):
    """Has the `size` of the root's output. Every rank puts in its chunk."""

    shares = uses_root = True

    def allocate(self) -> None:
        self.source = self.on_device(self.pattern(self.setting.rank))
        self.input = self.empty()
        self.output = self.empty(self.setting.world_size if self.is_root else 0)
        self.chunks = list(self.output.split(self.count)) if self.is_root else None

    def call(self) -> None:
        dist.gather(self.input, self.chunks, group_dst=self.setting.root, group=self.setting.group)

    def expected(self) -> torch.Tensor | None:
        if not self.is_root:
            return None
        return torch.cat([self.pattern(rank) for rank in range(self.setting.world_size)])

    def traffic(self) -> float:
        return 2.0 * self.size


class Scatter(Case):
    """Has the `size` of the root's input. Every rank gets its chunk."""

    shares = uses_root = True

    def allocate(self) -> None:
        self.source = self.on_device(self.patterns(self.setting.rank))
        self.input = self.empty(self.setting.world_size if self.is_root else 0)
        self.output = self.empty()
        self.chunks = list(self.input.split(self.count)) if self.is_root else None

    def call(self) -> None:
        dist.scatter(self.output, self.chunks, group_src=self.setting.root, group=self.setting.group)

    def expected(self) -> torch.Tensor:
        return self.pattern(self.setting.root, self.setting.rank)

    def traffic(self) -> float:
        return 2.0 * self.size


class AllToAll(Case):
    """Has the `size` of the input of a rank, which is that of its output too."""

    shares = True

    def allocate(self) -> None:
        self.source = self.on_device(self.patterns(self.setting.rank))
        self.input = self.empty(self.setting.world_size)
        self.output = torch.empty_like(self.input)

    def call(self) -> None:
        dist.all_to_all_single(self.output, self.input, group=self.setting.group)

    def expected(self) -> torch.Tensor:
        own = self.setting.rank
        return torch.cat([self.pattern(rank, own) for rank in range(self.setting.world_size)])


class SendRecv(Whole):
    """Sends `size` bytes from every rank to the next one."""

    def allocate(self) -> None:
        super().allocate()
        self.output = torch.empty_like(self.input)

    def call(self) -> None:
        group, size = self.setting.group, self.setting.world_size
        right, left = (self.setting.rank + 1) % size, (self.setting.rank - 1) % size
        sending = dist.P2POp(dist.isend, self.input, group=group, group_peer=right)
        receiving = dist.P2POp(dist.irecv, self.output, group=group, group_peer=left)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    def expected(self) -> torch.Tensor:
        return self.pattern((self.setting.rank - 1) % self.setting.world_size)


class Barrier(Case):
    """Moves nothing. Its size is always 0."""

    def allocate(self) -> None:
        self.count = 0
        device = self.setting.device
        self.device_ids = None if device.type == "cpu" else [device.index]

    def reset(self) -> None: ...

    def call(self) -> None:
        dist.barrier(group=self.setting.group, device_ids=self.device_ids)

    def expected(self) -> None:
        return None

    def traffic(self) -> float:
        return 0.0


class MemoryPass(Case):
    """Measures the memory: every rank runs y += x at once, which takes two reads and a write."""

    together = False
    ENOUGH = (
        16 << 20
    )  # bytes of an array in one call, since ranks that wait for a core begin later than others

    def allocate(self) -> None:
        self.input = torch.ones(self.count, dtype=torch.float32)
        self.output = torch.zeros(self.count, dtype=torch.float32)
        self.passes = max(1, min(64, self.ENOUGH // max(1, self.output.nbytes)))

    def reset(self) -> None: ...

    def call(self) -> None:
        for _ in range(self.passes):
            self.output.add_(self.input)

    def expected(self) -> None:
        return None

    def traffic(self) -> float:
        return 3.0 * self.setting.world_size * self.output.nbytes * self.passes


CASES: dict[str, type[Case]] = {
    "all_reduce": AllReduce,
    "broadcast": Broadcast,
    "reduce": Reduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "gather": Gather,
    "scatter": Scatter,
    "all_to_all": AllToAll,
    "send_recv": SendRecv,
    "barrier": Barrier,
}


def in_periods(buffer: torch.Tensor, firsts: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields views of the buffer with the values that belong into them.

    A view has the shape (chunks, periods, elements), and its values have the shape (chunks, 1, elements).
    There is a second pair if the last period of a chunk is cut off.

    Args:
        buffer: the chunks, one after another.
        firsts: the first period of each chunk, as rows.
    """
    if buffer.numel() == 0:
        return
    chunks, period = firsts.shape
    rows = buffer.view(chunks, -1)
    whole = rows.size(1) // period
    rest = rows.size(1) - whole * period
    yield rows[:, : whole * period].unflatten(1, (whole, period)), firsts[:, None]
    if rest > 0:
        yield rows[:, None, whole * period :], firsts[:, None, :rest]


def differing(result: torch.Tensor, expected: torch.Tensor) -> int:
    """Returns how many elements are wrong. An average may be off by rounding."""
    if not result.dtype.is_floating_point:
        return int((result.cpu() != expected.to(result.dtype)).sum())
    tolerance = 2 * torch.finfo(result.dtype).eps
    close = torch.isclose(result.cpu().double(), expected.double(), rtol=tolerance, atol=0)
    return int((~close).sum())
