"""A barrier that names the ranks that did not come, over the group's store.

It needs no communicator and breaks none: ranks can ask who is missing when the collectives of a group are
stuck. For debugging; it costs several round trips to the store.

All ranks pass or all raise, with the same text: the first to know, which is rank 0 when all have come, or
whoever ran out of patience, writes the verdict, and the store lets nobody write a second. A rank that comes
late reads the verdict of the barrier that it missed. So the n-th call of every rank belongs to the same
barrier, whatever became of the others.
"""

import datetime
import time
import warnings
import weakref

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vccl import _shim

_PASSED = "passed"
# Between two looks for a key that is not there yet, in seconds; the shortest comes first. A wait in the store
# would not end on an interrupt, and prints a warning for each timeout.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02
# How much longer than its timeout rank 0 may take for the verdict, being slow. Seconds.
_MARGIN = 10.0


class _Count:
    """Which barrier of which group this rank is at."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.calls = 0


_counts: "weakref.WeakKeyDictionary[dist.ProcessGroup, _Count]" = weakref.WeakKeyDictionary()


def prepare(group: dist.ProcessGroup) -> None:
    """Notes a new group. Every rank of it calls this once.

    A store outlives groups (under torchrun it lives as long as the job), so the same group made again must
    not read the verdicts of its predecessor.
    """
    life = group.get_group_store().add(f"vccl/monitored_barrier/lives/{group.rank()}", 1)
    _counts[group] = _Count(life)


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: datetime.timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits on the host until all ranks of `group` have called; names those that do not call in time.

    Collectives under way do not end before it returns, nor does it wait for them.

    Args:
        group: the default group if None. Ranks outside of it are warned, and return.
        timeout: how long rank 0 waits for all ranks, and each other rank for rank 0; a float is in seconds.
            The group's own timeout if None.
        wait_all_ranks: whether the error names every missing rank, instead of the first.

    Raises:
        DistBackendError: a rank did not call in time. All that have called raise the same text, and those
            that call later do so at once.
        TypeError: `timeout` is neither a timedelta nor a number.
        ValueError: `group` was not made by torch.distributed, or has no backend vccl.
    """
    if c10d._rank_not_in_group(group):
        c10d._warn_not_in_group("monitored_barrier")
        return
    if group is None:
        group = c10d._get_default_group()
    count = _counts.get(group)
    if count is None or group not in c10d._world.pg_map:
        raise ValueError(
            "monitored_barrier: the group has no backend vccl, or torch.distributed has not made it or has "
            "destroyed it"
        )
    seconds = _seconds(timeout, group)
    count.calls += 1
    _Barrier(group, f"vccl/monitored_barrier/{count.life}/{count.calls}", seconds, wait_all_ranks).run()


def _seconds(timeout: datetime.timedelta | float | None, group: dist.ProcessGroup) -> float:
    if timeout is None:
        timeout = _shim.vccl_backends(group)[0].options._timeout
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        warnings.warn(
            f"Please specify timeout arg as a timedelta. Taking the value of {timeout} for seconds",
            stacklevel=4,
        )
        return float(timeout)
    c10d._check_valid_timeout(timeout)
    return timeout.total_seconds()


class _Barrier:
    """One barrier, as one rank sees it."""

    def __init__(self, group: dist.ProcessGroup, prefix: str, timeout: float, wait_all_ranks: bool) -> None:
        self.store = dist.PrefixStore(prefix, group.get_group_store())
        self.name = group.group_desc if group.group_desc != "undefined" else group.group_name
        self.rank, self.size = group.rank(), group.size()
        self.timeout = timeout
        self.wait_all_ranks = wait_all_ranks

    def run(self) -> None:
        self.store.set(f"rank/{self.rank}", str(self.timeout))
        if self.store.check(["verdict"]):  # they went on without this rank
            verdict = self.store.get("verdict").decode()
        else:
            verdict = self.as_first() if self.rank == 0 else self.as_other()
        self.leave()
        if verdict != _PASSED:
            raise dist.DistBackendError(verdict)

    def as_first(self) -> str:
        """Rank 0: waits for everybody."""
        deadline = time.monotonic() + self.timeout
        return self.decide([rank for rank in range(1, self.size) if not self.has(f"rank/{rank}", deadline)])

    def as_other(self) -> str:
        """Waits for rank 0, then for its verdict."""
        if not self.has("rank/0", time.monotonic() + self.timeout):
            return self.decide([0])
        # Ranks may have been given different timeouts: that of rank 0 counts.
        patience = float(self.store.get("rank/0")) + _MARGIN
        if not self.has("verdict", time.monotonic() + patience):
            return self.decide([0])
        return self.store.get("verdict").decode()

    def decide(self, missing: list[int]) -> str:
        """Writes the verdict, unless there is one; returns that which holds."""
        return self.store.compare_set("verdict", "", self.verdict(missing)).decode()

    def verdict(self, missing: list[int]) -> str:
        if not missing:
            return _PASSED
        if not self.wait_all_ranks:
            missing = missing[:1]
        which = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
        return (
            f"{which} failed to pass monitoredBarrier in {round(self.timeout * 1000)} ms (group {self.name} "
            f"of {self.size} ranks, according to rank {self.rank}). Find out where it is instead, for "
            "example with py-spy dump, or allow more time with the argument timeout."
        )

    def has(self, key: str, deadline: float) -> bool:
        """Whether the key is there before the deadline."""
        pause = _SHORTEST_PAUSE
        while not self.store.check([key]):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def leave(self) -> None:
        """Removes the keys, as the last to leave. Those of a failed barrier wait for the missing."""
        if self.store.add("left", 1) == self.size:
            for key in ("verdict", "left", *(f"rank/{rank}" for rank in range(self.size))):
                self.store.delete_key(key)
