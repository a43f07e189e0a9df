"""Tests on four ranks, some of which end in one of ten ways that other tests must not notice.

test_ten_ways.py runs them. For more of them:

    TEN_WAYS=1000,20 VDEV_MEMORY=512M python -m pytest tests/testing/ten_ways.py
"""

import ctypes
import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from vccl.testing import on_rank

# How many tests there are, and that every so-manieth is one of the ten ways.
COUNT, EVERY = map(int, os.environ.get("TEN_WAYS", "40,4").split(","))
KEPT = []


def raise_on_one_rank():
    if on_rank(1):
        raise ValueError("of rank 1")


def end_a_process():
    if on_rank(1):
        print("last words")
        os._exit(3)


def kill_a_process():
    if on_rank(1):
        os.kill(os.getpid(), signal.SIGKILL)


def crash():
    if on_rank(1):
        ctypes.string_at(0)


def hang():
    if on_rank(1):
        time.sleep(3600)


def leave_a_group():
    sys.kept = dist.new_group([0, 1])


def leave_a_thread():
    if on_rank(1):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="left").start()


def leave_a_pending_collective():
    dist.all_reduce(torch.ones(5, device="vdev"))
    if on_rank(1):
        KEPT.append(dist.all_reduce(torch.ones(5, device="vdev"), async_op=True))


def change_the_environment():
    os.environ["LEFT"] = "1"


def exhaust_the_memory():
    while on_rank(1):
        KEPT.append(torch.empty(64 << 20, dtype=torch.uint8, device="vdev"))


# What pytest shows of each way, or "" where the test passes.
WAYS = {
    raise_on_one_rank: "rank 1: ValueError: of rank 1",
    end_a_process: "rank 1: ended with status 3 in the middle of the test",
    kill_a_process: "rank 1: killed by SIGKILL",
    crash: "rank 1: killed by SIGSEGV",
    hang: "rank 1: no end in time",
    leave_a_group: "",
    leave_a_thread: "",
    leave_a_pending_collective: "",
    change_the_environment: "",
    exhaust_the_memory: "rank 1: torch.OutOfMemoryError",
}
# What tests that pass have left behind.
LEFT = {
    leave_a_thread: "has left the thread 'left' on rank 1.",
    leave_a_pending_collective: "bytes of a card's memory on rank 1",
    change_the_environment: "environment variables: LEFT on ranks 0 to 3",
}


def way_of(number):
    """The way that a test takes, or None."""
    ways = list(WAYS)
    return ways[number // EVERY % len(ways)] if number % EVERY == EVERY - 1 else None


@pytest.mark.ranks(4, timeout=30)
@pytest.mark.parametrize("number", range(COUNT))
def test_it(number):
    assert "LEFT" not in os.environ and not KEPT and threading.active_count() == 2
    assert torch.vdev.memory_allocated() == 0 and dist.distributed_c10d._world.group_count == 1
    x = torch.full((4,), float(dist.get_rank()), device="vdev")
    way = way_of(number)
    if way is not None:
        way()
    if way is not leave_a_pending_collective:
        dist.all_reduce(x)
        assert x.eq(6).all()
