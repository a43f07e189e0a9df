"""The collectives that can be measured: their buffers, their call, and the answer that is known before."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.distributed as dist

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


@dataclass(frozen=True)
class Setting:
    """One rank's view of one measurement."""

    rank: int
    world_size: int
    group: dist.ProcessGroup
    device: torch.device
    dtype: torch.dtype
    op: str = "sum"
    root: int = 0


class Case(ABC):
    """A collective with its buffers. `size` is in bytes, as nccl-tests counts it."""

    uses_op = False
    uses_root = False

    def __init__(self, setting: Setting, size: int) -> None:
        self.setting = setting
        self.count = size // setting.dtype.itemsize
        self.allocate()

    @property
    def size(self) -> int:
        """Bytes, after rounding down to whole elements."""
        return self.count * self.setting.dtype.itemsize

    @abstractmethod
    def allocate(self) -> None: ...

    @abstractmethod
    def reset(self) -> None:
        """Writes the buffers anew: a training step, too, hands over what it has just written."""

    @abstractmethod
    def call(self) -> None:
        """The call that is timed."""

    @abstractmethod
    def wrong(self) -> int:
        """How many elements of the output differ from the known answer, on this rank."""

    def bus_factor(self) -> float:
        """What algorithm bandwidth is multiplied by to give the traffic of the busiest link."""
        return 1.0

    def pattern(self, rank: int) -> torch.Tensor:
        """What `rank` puts in: small integers, so that every sum is exact in every dtype."""
        ramp = torch.arange(self.count, dtype=torch.int32).remainder_(8)
        return ramp.add_(rank % 8).to(self.setting.dtype)

    def filled(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.setting.device)


class AllReduce(Case):
    uses_op = True

    def allocate(self) -> None:
        self.source = self.filled(self.pattern(self.setting.rank))
        self.buffer = torch.empty_like(self.source)

    def reset(self) -> None:
        self.buffer.copy_(self.source)

    def call(self) -> None:
        dist.all_reduce(self.buffer, op=REDUCE_OPS[self.setting.op], group=self.setting.group)

    def wrong(self) -> int:
        inputs = torch.stack([self.pattern(rank).double() for rank in range(self.setting.world_size)])
        reduce = {"sum": inputs.sum, "avg": inputs.mean, "min": inputs.amin, "max": inputs.amax}[
            self.setting.op
        ]
        return differing(self.buffer, reduce(0))

    def bus_factor(self) -> float:
        return 2 * (self.setting.world_size - 1) / self.setting.world_size


class Broadcast(Case):
    uses_root = True

    def allocate(self) -> None:
        self.source = self.filled(self.pattern(self.setting.rank))
        self.buffer = torch.empty_like(self.source)

    def reset(self) -> None:
        self.buffer.copy_(self.source)

    def call(self) -> None:
        dist.broadcast(self.buffer, group_src=self.setting.root, group=self.setting.group)

    def wrong(self) -> int:
        return differing(self.buffer, self.pattern(self.setting.root))


class AllGather(Case):
    """`size` is the output's; every rank puts in its share, and `count` is that share's."""

    @property
    def size(self) -> int:
        return self.count * self.setting.dtype.itemsize * self.setting.world_size

    def allocate(self) -> None:
        self.count = max(1, self.count // self.setting.world_size)
        self.source = self.filled(self.pattern(self.setting.rank))
        self.share = torch.empty_like(self.source)
        self.output = self.source.new_empty(self.count * self.setting.world_size)

    def reset(self) -> None:
        self.share.copy_(self.source)
        self.output.zero_()

    def call(self) -> None:
        dist.all_gather_single(self.output, self.share, group=self.setting.group)

    def wrong(self) -> int:
        return differing(self.output, torch.cat([self.pattern(r) for r in range(self.setting.world_size)]))

    def bus_factor(self) -> float:
        return (self.setting.world_size - 1) / self.setting.world_size


class Barrier(Case):
    """Moves nothing; its size is always 0."""

    def allocate(self) -> None:
        self.count = 0
        device = self.setting.device
        self.device_ids = None if device.type == "cpu" else [device.index]

    def reset(self) -> None: ...

    def call(self) -> None:
        dist.barrier(group=self.setting.group, device_ids=self.device_ids)

    def wrong(self) -> int:
        return 0


CASES: dict[str, type[Case]] = {
    "all_reduce": AllReduce,
    "broadcast": Broadcast,
    "all_gather": AllGather,
    "barrier": Barrier,
}


def differing(result: torch.Tensor, expected: torch.Tensor) -> int:
    """Elements that are not what they should be; an average may be off by rounding."""
    if not result.dtype.is_floating_point:
        return int((result.cpu() != expected.to(result.dtype)).sum())
    tolerance = 2 * torch.finfo(result.dtype).eps
    close = torch.isclose(result.cpu().double(), expected.double(), rtol=tolerance, atol=0)
    return int((~close).sum())
