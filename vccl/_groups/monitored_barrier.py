"""Offers a barrier that names the ranks that did not come. The ranks meet in the group's store.

The barrier is for debugging: it costs several round trips to the store. It needs no communicator and breaks
none, so ranks can ask who is missing when the collectives of a group are stuck.

Either all ranks pass, or all raise the same text. One rank writes the verdict, and the store refuses a
second verdict. Rank 0 writes it when all have come, and otherwise the first rank whose timeout has passed. A
rank that comes late reads the verdict of the barrier that it missed. So the n-th call of every rank belongs
to the same barrier, whatever became of the other calls.
"""

import datetime
import time
import warnings
import weakref

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vccl._groups.backends import vccl_backends

_PASSED = "passed"
# Pauses between two looks for a key that is not there yet, in seconds. They double from the shortest to the
# longest. A wait in the store would not end on an interrupt, and prints a warning for each timeout.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02
# The time between two looks whether the awaited rank still lives, in seconds.
_LOOK_PERIOD = 0.2
# How much longer than its timeout rank 0 may take to write the verdict, in seconds. It may be slow.
_MARGIN = 10.0


class _Count:
    """Counts the barriers that this rank has called in one life of a group."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.calls = 0


_counts: "weakref.WeakKeyDictionary[dist.ProcessGroup, _Count]" = weakref.WeakKeyDictionary()


def prepare(group: dist.ProcessGroup) -> None:
    """Notes a new group. Every rank of the group calls this once.

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
    """Blocks until all ranks of `group` have called it, and names the ranks that do not call it in time.

    It does not wait for collectives that are under way.

    Args:
        group: the ranks that meet, and the default group if None. Ranks outside of it get a warning, and
        return. timeout: how long rank 0 waits for all ranks, and each other rank for rank 0. A float is in
        seconds.
            None stands for the group's own timeout.
        wait_all_ranks: whether the error names every missing rank, and not only the first.

    Raises:
        DistBackendError: a rank did not call in time, or has died or left. Ranks of its machine see the
        latter
            at once. All ranks that have called raise the same text, and those that call later raise it at
            once.
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
        timeout = vccl_backends(group)[0].options._timeout
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        warnings.warn(
            f"Please specify timeout arg as a timedelta. Taking the value of {timeout} for seconds",
            stacklevel=4,
        )
        return float(timeout)
    c10d._check_valid_timeout(timeout)
    assert isinstance(timeout, datetime.timedelta)  # which the line before has checked
    return timeout.total_seconds()


class _Barrier:
    """Runs one barrier on one rank."""

    def __init__(self, group: dist.ProcessGroup, prefix: str, timeout: float, wait_all_ranks: bool) -> None:
        self.store = dist.PrefixStore(prefix, group.get_group_store())
        self.backend = vccl_backends(group)[0]
        self.rank, self.size = group.rank(), group.size()
        self.timeout = timeout
        self.ended: dict[int, str] = {}  # what is known of ranks that have died or left
        self.wait_all_ranks = wait_all_ranks

    def run(self) -> None:
        self.store.set(f"rank/{self.rank}", str(self.timeout))
        if self.store.check(["verdict"]):  # the others went on without this rank
            verdict = self.store.get("verdict").decode()
        else:
            verdict = self.as_first() if self.rank == 0 else self.as_other()
        self.leave()
        if verdict != _PASSED:
            raise dist.DistBackendError(verdict)

    def as_first(self) -> str:
        """Waits for all ranks, as rank 0 does. Returns the verdict."""
        deadline = time.monotonic() + self.timeout
        missing = [rank for rank in range(1, self.size) if not self.has(f"rank/{rank}", deadline, rank)]
        return self.decide(missing)

    def as_other(self) -> str:
        """Waits for rank 0, and then for its verdict. Returns the verdict."""
        if not self.has("rank/0", time.monotonic() + self.timeout, 0):
            return self.decide([0])
        # Ranks may have been given different timeouts. The one of rank 0 counts.
        patience = float(self.store.get("rank/0")) + _MARGIN
        if not self.has("verdict", time.monotonic() + patience, 0):
            return self.decide([0])
        return self.store.get("verdict").decode()

    def decide(self, missing: list[int]) -> str:
        """Writes the verdict unless there is one. Returns the one that is there then."""
        return self.store.compare_set("verdict", "", self.verdict(missing)).decode()

    def verdict(self, missing: list[int]) -> str:
        if not missing:
            return _PASSED
        if not self.wait_all_ranks:
            missing = missing[:1]
        which = self.backend._ranks_text(missing)
        which = which[0].upper() + which[1:]
        here = self.backend._ranks_text([self.rank])
        where = f"(group {self.backend._group_name} of {self.size} ranks, according to {here})"
        ended = [text for rank, text in self.ended.items() if rank in missing]
        if len(ended) == len(missing):
            return (
                f"{which} failed to pass monitoredBarrier: {'; '.join(ended)} {where}. Read that "
                "rank's own output."
            )
        return (
            f"{which} failed to pass monitoredBarrier in {round(self.timeout * 1000)} ms {where}"
            f"{''.join(f'; {text}' for text in ended)}. Find out where it is instead, for example with "
            "py-spy dump, or allow more time with the argument timeout."
        )

    def has(self, key: str, deadline: float, rank: int) -> bool:
        """Returns whether the key is there before the deadline, or was there when its writer `rank` ended."""
        pause = _SHORTEST_PAUSE
        next_look = time.monotonic() + _LOOK_PERIOD
        while not self.store.check([key]):
            now = time.monotonic()
            if now >= next_look:
                if rank in self.ended:  # this was known before the last look at the store
                    return False
                self.ended = self.backend._ended_ranks()
                next_look = now + _LOOK_PERIOD
                continue
            left = deadline - now
            if left <= 0:
                return False
            time.sleep(min(left, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def leave(self) -> None:
        """Removes the keys if this rank is the last to leave. After a failure they stay for late ranks."""
        if self.store.add("left", 1) == self.size:
            for key in ("verdict", "left", *(f"rank/{rank}" for rank in range(self.size))):
                self.store.delete_key(key)
