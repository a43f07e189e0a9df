"""Programs that do not wait for a collective read what was there before it, as on a GPU. Others never do.

A scene starts an all_reduce of two ranks and reads its result, with or without the wait. Without it, rank 1
joins the collective when rank 0 has read, so that nothing depends on time.
"""

import os

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, default_store

pytestmark = pytest.mark.asynchronous

# Continuous integration plays fewer rounds than the 10,000 that VCCL_TEST_ROUNDS asks for.
ROUNDS = int(os.environ.get("VCCL_TEST_ROUNDS", "300"))
SIZE = 64
OLD, NEW = [1.0] * SIZE, [2.0] * SIZE


def the_work_is_not_waited_for(x, repaired):
    work = dist.all_reduce(x, async_op=True)
    if repaired:
        work.wait()
    return work, (x * 1).tolist()


def the_work_is_waited_for_on_another_stream(x, repaired):
    reader = torch.vdev.Stream()
    reader.wait_stream(torch.vdev.current_stream())
    work = dist.all_reduce(x, async_op=True)
    with torch.vdev.stream(reader if repaired else torch.vdev.Stream()):
        work.wait()
    with torch.vdev.stream(reader):
        return work, (x * 1).tolist()


def the_event_is_recorded_on_the_stream_of_the_call(x, repaired):
    """The event of the stream that calls an async_op collective comes before the collective."""
    reader, stream = torch.vdev.Stream(), torch.vdev.current_stream()
    work = dist.all_reduce(x, async_op=True)
    if repaired:
        work.wait()
    reader.wait_event(stream.record_event())
    with torch.vdev.stream(reader):
        return work, (x * 1).tolist()


SCENES = pytest.mark.parametrize(
    "play",
    [
        the_work_is_not_waited_for,
        the_work_is_waited_for_on_another_stream,
        the_event_is_recorded_on_the_stream_of_the_call,
    ],
)


@pytest.mark.ranks(2)
@SCENES
def test_the_bug_is_seen(ranks, play):
    x = torch.tensor(OLD, device="vdev")
    dist.all_reduce(torch.ones(1, device="vdev"))
    torch.vdev.synchronize()
    if ranks.rank == 1:
        default_store().wait(["rank 0 has read"], PATIENCE)
        dist.all_reduce(x)
        assert x.tolist() == NEW
        return
    work, read = play(x, repaired=False)
    assert read == OLD
    default_store().set("rank 0 has read", "")
    work.wait()
    assert x.tolist() == NEW


@pytest.mark.ranks(2)
@SCENES
def test_the_repair_always_helps(ranks, play):
    for number in range(ROUNDS):
        x = torch.tensor(OLD, device="vdev")
        # The ranks come to the collective early and late in turn.
        torch.vdev._sleep(20_000 if (number + ranks.rank) % 2 else 1)
        _, read = play(x, repaired=True)
        assert read == NEW, f"round {number} of {ROUNDS} read {read}"
