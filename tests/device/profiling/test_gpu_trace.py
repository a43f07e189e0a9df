"""torch's tracer of GPU calls hears of events, memory, streams and synchronisations of the cards.

Tracing cannot be switched off again, so the scenes are played in a process of their own, one after the other.
"""

import json
import threading
import traceback

import pytest
import torch

NAMES = (
    "event_creation",
    "event_deletion",
    "event_record",
    "event_wait",
    "memory_allocation",
    "memory_deallocation",
    "stream_creation",
    "device_synchronization",
    "stream_synchronization",
    "event_synchronization",
)
MARK = "outcomes: "


class Trace:
    """Keeps what the tracer has heard as (name, arguments), in order, and by which threads."""

    def __init__(self):
        import torch.vdev._gpu_trace as gpu_trace

        self.calls, self.threads = [], set()
        for name in NAMES:
            getattr(gpu_trace, f"register_callback_for_{name}")(
                lambda *arguments, name=name: self.hear(name, arguments)
            )
        torch._C._activate_gpu_trace()

    def hear(self, name, arguments):
        self.calls.append((name, *arguments))
        self.threads.add(threading.get_ident())

    def take(self, *names):
        """Returns the calls of these names since the last call, or all calls."""
        calls, self.calls = self.calls, []
        return [call for call in calls if not names or call[0] in names]


def name_of(stream):
    """Returns what stands for a stream: in pose a default stream is 0."""
    return stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.native_handle


def scene_events(trace):
    stream = torch.vdev.default_stream()
    event = torch.vdev.Event()
    event.synchronize()
    assert trace.take() == [], "an event comes into being when it is recorded"
    event.record(stream)
    named = event.event_id
    assert trace.take() == [("event_creation", named), ("event_record", named, name_of(stream))]
    event.record(stream)
    event.wait(stream)
    event.synchronize()
    event.query()
    assert trace.take() == [
        ("event_record", named, name_of(stream)),
        ("event_wait", named, name_of(stream)),
        ("event_synchronization", named),
    ]
    del event
    assert trace.take() == [("event_deletion", named)]


def scene_streams(trace):
    stream = torch.vdev.Stream()
    assert trace.take() == [("stream_creation", name_of(stream))]
    stream.wait_stream(torch.vdev.default_stream())
    calls = trace.take()
    assert [call[0] for call in calls] == ["event_creation", "event_record", "event_wait", "event_deletion"]
    assert calls[1][2] == name_of(torch.vdev.default_stream()) and calls[2][2] == name_of(stream)
    stream.query()
    stream.synchronize()
    assert trace.take() == [("stream_synchronization", name_of(stream))]
    # The pool has 32 streams, which are handed out again.
    streams = [torch.vdev.Stream() for _ in range(40)]
    assert len(trace.take("stream_creation")) == 31
    del streams


def scene_waits_of_the_host(trace):
    x = torch.ones(4, device="vdev")
    pinned = torch.ones(4).pin_memory()
    trace.take()
    torch.vdev.synchronize()
    assert trace.take() == [("device_synchronization",)]
    synchronizations = {
        "an element": lambda: x[0].item(),
        "a shape": lambda: x.nonzero(),
        "a copy to the host": lambda: x.cpu(),
        "a copy from the host": lambda: x.copy_(torch.zeros(4)),
    }
    stream = torch.vdev.Stream()
    for current in (torch.vdev.default_stream(), stream):
        with torch.vdev.stream(current):
            for what, call in synchronizations.items():
                trace.take()
                call()
                heard = trace.take("stream_synchronization", "device_synchronization")
                assert heard == [("stream_synchronization", name_of(current))], (what, heard)
    trace.take()
    x.copy_(pinned, non_blocking=True)
    assert trace.take() == []


def scene_memory(trace):
    x = torch.empty(10, 4, device="vdev")
    address = x.data_ptr()
    assert trace.take() == [("memory_allocation", address)]
    view = x[1:]
    del x
    assert trace.take() == []
    del view
    assert trace.take() == [("memory_deallocation", address)]
    torch.empty(0, device="vdev")
    assert trace.take() == []


def scene_memory_of_operators(trace):
    x = torch.rand(64, 64, device="vdev")
    kernel = torch.rand(3, 1, 5, device="vdev")
    operators = {
        "a result": lambda: x + 1,
        "one whose shape depends on elements": lambda: x.nonzero(),
        "scratch memory": lambda: torch.nn.functional.conv1d(x[:, None], kernel),
        "two results": lambda: x.sort(),
        "none": lambda: x.mul_(2),
    }
    for what, call in operators.items():
        for _ in range(3):  # it is known from the second call on, and becomes a task
            trace.take()
            result = call()
            results = result if isinstance(result, tuple) else [result]
            results = {r.data_ptr() for r in results if r is not x}
            heard = trace.take("memory_allocation", "memory_deallocation")
            left = {address for name, address in heard if name == "memory_allocation"}
            left -= {address for name, address in heard if name == "memory_deallocation"}
            assert left == results, (what, heard, results)
            torch.vdev.synchronize()
            trace.take()
            addresses = {r.data_ptr() for r in (result if isinstance(result, tuple) else [result])}
            del result
            heard = trace.take("memory_allocation", "memory_deallocation")
            freed = [("memory_deallocation", address) for address in addresses if address != x.data_ptr()]
            assert sorted(heard) == sorted(freed), what


def scene_a_task_frees_memory(trace):
    stream = torch.vdev.Stream()
    held = [torch.empty(1 << 20, device="vdev")]
    address = held[0].data_ptr()
    opened = threading.Event()
    with torch.vdev.stream(stream):
        torch.vdev._launch_host_func(lambda: opened.wait(60))
        torch.vdev._launch_host_func(held.clear)
    trace.take()
    opened.set()
    stream.synchronize()
    assert not held
    # Whoever gets the memory comes after that it was freed.
    again = torch.empty(1 << 20, device="vdev")
    assert again.data_ptr() == address
    heard = trace.take("memory_allocation", "memory_deallocation")
    assert heard == [("memory_deallocation", address), ("memory_allocation", address)]


def scene_copies_between_cards(trace):
    ours, theirs = torch.vdev.Stream(0), torch.vdev.Stream(1)
    x, y = torch.ones(8, device="vdev:0"), torch.ones(8, device="vdev:1")
    with torch.vdev.stream(theirs), torch.vdev.stream(ours):
        trace.take()
        y.copy_(x)
        calls = trace.take()
    assert [call[0] for call in calls] == 2 * [
        "event_creation",
        "event_record",
        "event_wait",
        "event_deletion",
    ]
    streams = [call[2] for call in calls if len(call) == 3]
    assert streams == [name_of(theirs), name_of(ours), name_of(ours), name_of(theirs)]


def scene_a_callback_that_uses_cards(trace):
    import torch.vdev._gpu_trace as gpu_trace

    made, active = [], [True]
    gpu_trace.register_callback_for_event_record(
        lambda event, stream: active and made.append(torch.ones(4, device="vdev") + 1)
    )
    event = torch.vdev.Event()
    event.record()
    active.clear()
    assert made[0].tolist() == [2] * 4


def scene_a_callback_that_raises(trace):
    import torch.vdev._gpu_trace as gpu_trace

    active = [True]

    def raises():
        if active:
            raise ValueError("told by the callback")

    gpu_trace.register_callback_for_device_synchronization(raises)
    torch.vdev.synchronize()
    active.clear()


def scene_other_threads(trace):
    def train():
        model = torch.nn.Linear(16, 16, device="vdev")
        for _ in range(20):
            with torch.vdev.stream(torch.vdev.Stream()):
                model(torch.rand(4, 16, device="vdev")).sum().backward()
                torch.vdev.current_stream().synchronize()

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    # Whatever memory was told of is told of once: a new allocation comes after the deallocation.
    torch.vdev.synchronize()
    live = set()
    for name, address in trace.take("memory_allocation", "memory_deallocation"):
        if name == "memory_allocation":
            assert address not in live
            live.add(address)
        else:
            live.discard(address)


def scene_no_worker_runs_python(trace):
    trace.threads.clear()
    x = torch.rand(1 << 16, device="vdev")
    for _ in range(50):
        x = (x @ x.new_ones(1 << 16)).expand(1 << 16) / (1 << 16)
    torch.vdev.synchronize()
    assert trace.threads == {threading.get_ident()}


SCENES = [name for name in globals() if name.startswith("scene_")]


def play_all():
    """Plays every scene in this process, and prints the traceback of each, or ""."""
    trace, outcomes = Trace(), {}
    for name in SCENES:
        torch.vdev.synchronize()
        trace.take()
        try:
            globals()[name](trace)
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
    print(MARK + json.dumps(outcomes))


@pytest.fixture(scope="module")
def outcomes():
    return {}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene(name, outcomes, run_python):
    if not outcomes:
        played = run_python(f"import {__name__} as scenes; scenes.play_all()", timeout=300)
        outcomes.update(json.loads(played.stdout.split(MARK)[1]))
    assert not outcomes[name], outcomes[name]


def test_the_end_of_the_interpreter(run_python):
    """Nothing is told when Python's modules are gone already, and nothing is logged then."""
    ended = run_python(
        "import torch, torch.vdev._gpu_trace as gpu_trace\n"
        "gpu_trace.register_callback_for_memory_deallocation(print)\n"
        "torch._C._activate_gpu_trace()\n"
        "torch.kept = [torch.ones(4, device='vdev'), torch.vdev.Event()]\n"
        "torch.kept[1].record()\n"
        "(torch.ones(1 << 20, device='vdev') + 1)\n"
    )
    assert ended.stderr == ""
