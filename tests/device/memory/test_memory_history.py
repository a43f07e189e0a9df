"""Snapshots of a card's memory and the history of its allocations, in the form of torch's memory viewer."""

import pickle
import sys

import pytest
import torch
from torch.cuda import _memory_viz

import vccl

MIB = 2**20
CARD = 5


@pytest.fixture(autouse=True)
def history():
    """Ends every test with an empty cache and without a recording."""
    torch.vdev.synchronize(CARD)
    torch.vdev.empty_cache()
    yield torch.vdev.memory
    torch.vdev.memory._record_memory_history(None)


@pytest.fixture
def own_segments():
    """Returns what picks the segments of this test from a snapshot: other tests may have left tensors, which
    keep segments with room in them."""
    pool = torch.vdev.MemPool()
    with torch.vdev.use_mem_pool(pool, CARD):
        yield lambda snapshot: [s for s in of_card(snapshot) if s["segment_pool_id"] == pool.id]


def of_card(snapshot):
    return [segment for segment in snapshot["segments"] if segment["device"] == CARD]


def allocate_here(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device=f"vdev:{CARD}")


def names_of(frames):
    return [frame["name"] for frame in frames]


def test_a_snapshot_shows_every_segment_and_block(history, own_segments):
    small, large = allocate_here(1000), allocate_here(12 * MIB)
    segments = own_segments(history._snapshot())
    by_type = {segment["segment_type"]: segment for segment in segments}
    assert set(by_type) == {"small", "large"}
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    live = next(b for b in by_type["small"]["blocks"] if b["state"] == "active_allocated")
    assert (live["address"], live["size"], live["requested_size"]) == (small.data_ptr(), 1024, 1000)
    assert by_type["large"]["allocated_size"] == by_type["large"]["active_size"] == 12 * MIB
    assert by_type["large"]["blocks"][0]["address"] == large.data_ptr()
    stats, segments = torch.vdev.memory_stats(CARD), of_card(history._snapshot())
    assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    assert sum(s["requested_size"] for s in segments) == stats["requested_bytes.all.current"]
    assert of_card({"segments": history.memory_snapshot()}) == segments


def test_the_older_arguments(history):
    """A bool asks for those of torch's first versions."""
    history._record_memory_history(True, trace_alloc_max_entries=5, trace_alloc_record_context=True)
    x = allocate_here(1000)
    events = history._snapshot()["device_traces"][CARD]
    assert "alloc" in [event["action"] for event in events]
    assert "allocate_here" in names_of(history._allocation_traceback(x.data_ptr()))
    history._record_memory_history(True, False)
    y = allocate_here(1000)
    assert not history._allocation_traceback(y.data_ptr())
    history._record_memory_history(False)
    allocate_here(1000)
    assert not history._snapshot()["device_traces"][CARD]
    with pytest.raises(TypeError):
        history._record_memory_history(True, stacks="all")


def test_the_history_tells_what_happened_where(history):
    history._record_memory_history(stacks="python")
    history._set_memory_metadata("step 3")
    x = allocate_here(12 * MIB)
    address = x.data_ptr()
    history._set_memory_metadata("")
    assert "allocate_here" in names_of(history._allocation_traceback(address))
    del x
    torch.vdev.empty_cache()
    events = history._snapshot()["device_traces"][CARD]
    assert [e["action"] for e in events] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert all(e["addr"] == address and e["stream"] == 0 and e["pool_id"] == (0, 0) for e in events)
    assert [e["size"] for e in events] == [12 * MIB] * 5
    assert [e["user_metadata"] for e in events[:3]] == ["step 3", "step 3", ""]
    assert all(isinstance(e["time_us"], int) for e in events)
    me = sys._getframe().f_code.co_name
    assert me in names_of(events[1]["frames"]) and "allocate_here" in names_of(events[1]["frames"])
    assert me in names_of(events[2]["frames"]) and "allocate_here" not in names_of(events[2]["frames"])
    frame = next(f for f in events[1]["frames"] if f["name"] == "allocate_here")
    assert frame["filename"] == __file__ and frame["line"] == allocate_here.__code__.co_firstlineno + 1
    assert history._allocation_traceback(address) is None


def test_memory_of_an_operator_is_of_its_call(history):
    x = torch.ones(MIB, device=f"vdev:{CARD}")
    x + 1  # what its result looks like is known from now on
    history._record_memory_history(stacks="python", clear_history=True)
    y = x + 1
    assert sys._getframe().f_code.co_name in names_of(
        history._allocation_traceback(y.untyped_storage().data_ptr())
    )
    torch.vdev.synchronize(CARD)


def test_only_the_last_events_are_kept(history):
    history._record_memory_history(context=None, max_entries=3, clear_history=True)
    for size in (1000, 2000, 3000):
        allocate_here(size)
    events = history._snapshot()["device_traces"][CARD]
    assert [(e["action"], e["size"]) for e in events] == [
        ("alloc", 3072),
        ("free_requested", 3072),
        ("free_completed", 3072),
    ]
    assert all(e["frames"] == [] for e in events)


def test_what_is_kept_can_be_chosen(history):
    history._record_memory_history("state", context="state", stacks="python", clear_history=True)
    x = allocate_here(1000)
    assert names_of(history._allocation_traceback(x.data_ptr()))
    assert history._snapshot()["device_traces"][CARD] == []
    history._record_memory_history(context="alloc", skip_actions=["free_requested", "snapshot"])
    del x
    y = allocate_here(1000)
    history._snapshot()
    events = history._snapshot()["device_traces"][CARD]
    assert [e["action"] for e in events] == ["free_completed", "alloc"]
    del y


def test_running_out_of_memory_is_an_event(history):
    history._record_memory_history(stacks="python", clear_history=True)
    with pytest.raises(torch.OutOfMemoryError):
        allocate_here(2**40)
    (event,) = history._snapshot()["device_traces"][CARD]
    assert event["action"] == "oom" and event["size"] == 2**40 and "addr" not in event
    assert event["device_free"] == torch.vdev.mem_get_info(CARD)[0]
    assert "allocate_here" in names_of(event["frames"])


def test_running_out_of_memory_is_observed(history):
    seen = []
    history._attach_out_of_memory_observer(lambda *figures: seen.append(figures))
    with pytest.raises(torch.OutOfMemoryError):
        allocate_here(2**40)
    free, total = torch.vdev.mem_get_info(CARD)
    assert seen == [(CARD, 2**40, total, free)]


def test_a_block_that_another_stream_uses_awaits_its_end(history, gate):
    x = allocate_here(1000)
    side = torch.vdev.Stream(CARD)
    gate.close(side)
    x.record_stream(side)
    address = x.data_ptr()
    del x
    blocks = [b for s in of_card(history._snapshot()) for b in s["blocks"] if b["address"] == address]
    assert [b["state"] for b in blocks] == ["active_pending_free"]
    gate.open()
    side.synchronize()
    blocks = [b for s in of_card(history._snapshot()) for b in s["blocks"] if b["address"] == address]
    assert all(b["state"] == "inactive" for b in blocks)


def test_the_viewer_of_torch_reads_a_dump(history, own_segments, tmp_path):
    history._record_memory_history(clear_history=True)
    kept = [allocate_here(3 * MIB) for _ in range(3)]
    kept.pop(0)
    history._dump_snapshot(tmp_path / "dump.pickle")
    snapshot = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    snapshot["segments"] = own_segments(snapshot)
    assert "6.0MiB" in _memory_viz.segsum(snapshot)
    trace = _memory_viz.trace(snapshot)
    assert "= cudaMalloc(" in trace and "[0:3.0MiB]" in trace and "# free completed for" in trace
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert page.lstrip().startswith("<!DOCTYPE html>")


def test_a_graph_has_a_pool_of_its_own(history):
    with torch.accelerator.device_index(CARD):
        graph = torch.vdev.VDEVGraph()
        # torch.cuda.graph would keep a stream of this card for all later captures.
        with torch.vdev.graph(graph, stream=torch.vdev.Stream()):
            y = torch.ones(1000, device="vdev") + 1
        segments = history.memory_snapshot(graph.pool())
        assert {s["segment_pool_id"] for s in segments} == {tuple(graph.pool())}
        assert any(b["address"] == y.data_ptr() for s in segments for b in s["blocks"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"enabled": "some"}, 'enabled is "some"'),
        ({"context": "some"}, 'context is "some"'),
        ({"stacks": "some"}, 'stacks is "some"'),
        ({"skip_actions": ["malloc"]}, 'skip_actions has "malloc"'),
        ({"max_entries": -1}, "max_entries is -1"),
    ],
)
def test_bad_arguments_are_refused(history, arguments, text):
    with pytest.raises(RuntimeError, match=text):
        history._record_memory_history(**arguments)
    assert not vccl._C._is_memory_history_recorded()


@pytest.mark.parametrize("name", ["compile_context", "global_record_annotations"])
def test_what_is_not_recorded_is_refused(history, name):
    with pytest.raises(NotImplementedError, match=name):
        history._record_memory_history(**{name: True})


def test_recording_changes_no_result(history):
    history._record_memory_history(max_entries=50)
    x = torch.randn(64, 64, device=f"vdev:{CARD}", requires_grad=True)
    y = (x @ x).relu().sum()
    y.backward()
    z = x.detach().cpu().requires_grad_()
    (z @ z).relu().sum().backward()
    assert torch.equal(x.grad.cpu(), z.grad)
    assert history._snapshot(augment_with_fx_traces=True)["segments"] == history._snapshot()["segments"]


def test_without_addr2line_frames_are_pythons(run_python, tmp_path):
    """torch calls that program to name frames of C++, and would raise "stoi"."""
    code = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.vdev.memory._record_memory_history()
told = [str(one.message) for one in caught]
x = torch.empty(1000, device="vdev")
frames = torch.vdev.memory._allocation_traceback(x.untyped_storage().data_ptr())
assert [f["name"] for f in frames] == ["<module>"], frames
assert torch.vdev.memory._snapshot()["segments"]
assert len(told) == 1 and "addr2line is missing" in told[0], told
torch.vdev.memory._record_memory_history(stacks="python")
torch.vdev.memory._record_memory_history(None)
"""
    run_python(code, PATH=str(tmp_path))
