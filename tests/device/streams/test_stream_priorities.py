"""Streams of high priority."""

import os

import pytest
import torch


def test_the_range():
    assert torch.vdev.Stream.priority_range() == (0, -1)


@pytest.mark.parametrize("priority", [-5, -1, 0, 5])
def test_every_priority_makes_a_stream(priority):
    stream = torch.vdev.Stream(priority=priority)
    with torch.vdev.stream(stream):
        x = torch.ones(3, device="vdev") * 2
    torch.vdev.synchronize()
    assert x.tolist() == [2, 2, 2]
    assert stream.priority == max(-1, min(priority, 0))


def test_every_way_to_get_a_stream_shows_its_priority():
    high = torch.Stream(device="vdev:1", priority=-1)
    assert high.priority == -1
    assert torch.Stream(device="vdev:1").priority == 0
    for same in (
        torch.vdev.ExternalStream(high.native_handle, device="vdev:1"),
        torch.Stream(stream_id=high.stream_id, device_index=high.device_index, device_type=high.device_type),
    ):
        assert same.stream_id == high.stream_id and same.priority == -1
    with torch.vdev.stream(high):
        assert torch.vdev.current_stream().priority == torch.accelerator.current_stream().priority == -1
    with high:
        assert torch.accelerator.current_stream() == high
    assert torch.vdev.current_stream(1).priority == torch.vdev.default_stream(1).priority == 0


def test_the_priority_cannot_be_set():
    with pytest.raises(AttributeError):
        torch.vdev.Stream().priority = -1


def test_streams_of_other_devices_have_none():
    stream = torch.Stream(stream_id=0, device_index=0, device_type=0)  # the CPU's
    assert not hasattr(stream, "priority")


@pytest.fixture
def one_slot():
    """Every core belongs to the task that runs, so streams take turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads, os.cpu_count() or 1))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_schedule():
    """A schedule draws which stream goes first (docs/inside/schedules.md)."""
    if os.environ.get("VDEV_SCHEDULE"):
        pytest.skip("a schedule draws which stream goes first")


@pytest.mark.asynchronous
@pytest.mark.parametrize("wait", ["stream", "worker"])
def test_operators_of_high_priority_go_first(gate, no_schedule, one_slot, wait):
    normal, high = torch.Stream(device="vdev"), torch.Stream(device="vdev", priority=-1)
    x, after = torch.zeros(4, device="vdev"), torch.zeros(4, device="vdev")
    for _ in range(2):  # what the results look like is known then
        x.fill_(0)
        x.clone()
        after.add_(1)
    torch.vdev.synchronize()
    gate.close(normal)
    with torch.vdev.stream(normal):
        seen = x.clone()
    with torch.vdev.stream(high):
        x.fill_(3)
        after.add_(1)  # the last one may run beside clone(), if the stream's worker has taken it
    gate.open()
    if wait == "stream":
        normal.synchronize()
    else:
        while not normal.query():
            pass
    high.synchronize()
    assert seen.tolist() == [3] * 4


@pytest.mark.asynchronous
def test_an_operator_that_runs_at_its_call_gives_way(no_schedule, one_slot):
    normal, high = torch.Stream(device="vdev"), torch.Stream(device="vdev", priority=-1)
    x, after = torch.zeros(4, device="vdev"), torch.zeros(4, device="vdev")
    chosen = torch.ones(4, dtype=torch.bool, device="vdev")
    for _ in range(2):  # what the results look like is known then
        x.fill_(0)
        after.add_(1)
    torch.vdev.synchronize()
    with torch.vdev.stream(high):
        x.fill_(3)
        after.add_(1)
    with torch.vdev.stream(normal):
        seen = x[chosen]  # has Booleans as indices, so it runs at its call
    assert seen.tolist() == [3] * 4


@pytest.mark.asynchronous
def test_what_high_priority_waits_for_runs(gate, one_slot):
    """The stream of high priority waits for the normal one, in the midst of its own operators."""
    normal, high = torch.Stream(device="vdev"), torch.Stream(device="vdev", priority=-1)
    x = torch.zeros(4, device="vdev")
    torch.vdev.synchronize()
    gate.close(normal)
    for _ in range(20):
        with torch.vdev.stream(high):
            x.mul_(2)
        normal.wait_stream(high)
        with torch.vdev.stream(normal):
            x.add_(1)
        high.wait_stream(normal)
    gate.open()
    high.synchronize()
    assert x.tolist() == [2**20 - 1] * 4
