"""Ranges of torch.vdev.nvtx, and how profiles show them."""

import threading

import pytest
import torch
from traces import Trace

nvtx = torch.vdev.nvtx


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A profile of all kinds of ranges, some of which overlap."""
    x = torch.ones(64, 64, device="vdev")
    (x @ x, x + x, x * x, x - x)
    with torch.profiler.profile() as profiler:
        nvtx.range_push("outer")
        with nvtx.range("inner {} {word}", 3, word="x"):
            x @ x
        nvtx.mark("mark")
        x + x
        nvtx.range_pop()
        first, second = nvtx.range_start("first"), nvtx.range_start("second")
        x * x
        nvtx.range_end(first)
        x - x
        thread = threading.Thread(target=nvtx.range_end, args=(second,))
        thread.start()
        thread.join()
        torch.vdev.synchronize()
    path = tmp_path_factory.mktemp("ranges") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return Trace(path)


def one(slices, name):
    (found,) = (each for each in slices if each.name == name)
    return found


def test_ranges_of_a_stack_are_on_the_lane_of_the_thread(trace):
    host = trace.of("user_annotation")
    outer, inner, mark = (one(host, name) for name in ("outer", "inner 3 x", "mark"))
    assert outer.lane == inner.lane == mark.lane
    assert outer.encloses(inner) and outer.encloses(mark) and mark.begin >= inner.end
    (product,) = (each for each in trace.of("cpu_op") if each.name == "aten::matmul")
    assert inner.encloses(product)


def test_ranges_of_a_stack_stand_above_what_they_launch(trace):
    card = trace.of("gpu_user_annotation")
    (product,), (total,) = trace.runs("aten.mm"), trace.runs("aten.add")
    assert one(card, "inner 3 x").encloses(product) and not one(card, "inner 3 x").encloses(total)
    assert one(card, "outer").encloses(product) and one(card, "outer").encloses(total)
    assert {each.name for each in card} == {"outer", "inner 3 x"}


def test_started_ranges_may_overlap(trace):
    host = trace.of("cpu_op")
    first, second = one(host, "first"), one(host, "second")
    assert first.begin <= second.begin <= first.end <= second.end
    difference = next(each for each in host if each.name == "aten::sub")
    assert second.encloses(difference) and difference.begin >= first.end


def test_numbers():
    assert [nvtx.range_push("a"), nvtx.range_push("b")] == [0, 1]
    depths = []
    thread = threading.Thread(target=lambda: depths.append(nvtx.range_push("other thread")))
    thread.start()
    thread.join()
    assert depths == [0]
    assert [nvtx.range_pop(), nvtx.range_pop(), nvtx.range_pop()] == [1, 0, -1]
    assert nvtx.range_start("c") != nvtx.range_start("d")
    nvtx.range_end(10**9)


def test_a_range_ends_with_an_error():
    with pytest.raises(ValueError, match="inside"), nvtx.range("x"):
        raise ValueError("inside")
    assert nvtx.range_pop() == -1


def test_a_profile_may_begin_and_end_inside_of_a_range():
    nvtx.range_push("before")
    with torch.profiler.profile() as profiler:
        nvtx.range_pop()
        nvtx.range_push("within")
    nvtx.range_pop()
    assert "before" not in {event.key for event in profiler.key_averages()}
