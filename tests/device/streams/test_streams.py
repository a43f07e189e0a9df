"""Streams, events and their errors."""

import io
import threading

import pytest
import torch


def test_current_stream():
    assert torch.vdev.current_stream() == torch.vdev.default_stream()
    assert torch.vdev.current_stream("vdev:2") == torch.vdev.default_stream(2)
    assert torch.vdev.default_stream(2).device == torch.device("vdev:2")
    stream = torch.vdev.Stream()
    assert stream != torch.vdev.current_stream() and stream.device == torch.device("vdev:0")
    with torch.vdev.stream(stream):
        assert torch.vdev.current_stream() == stream == torch.accelerator.current_stream()
        with torch.vdev.stream(None):
            assert torch.vdev.current_stream() == stream
    assert torch.vdev.current_stream() == torch.vdev.default_stream()
    with stream:
        assert torch.vdev.current_stream() == stream
    torch.vdev.set_stream(stream)
    assert torch.accelerator.current_stream() == stream


def test_stream_context_on_another_card():
    torch.vdev.set_device(1)
    own = torch.vdev.Stream()
    other = torch.vdev.Stream(device="vdev:3", priority=-1)
    previous = torch.vdev.Stream(device="vdev:3")
    torch.vdev.set_stream(previous)
    torch.vdev.set_stream(own)
    context = torch.vdev.stream(other)
    with context:
        assert torch.vdev.current_device() == 3 and torch.vdev.current_stream() == other
        with context:
            assert torch.vdev.current_stream() == other
        assert torch.vdev.current_stream() == other and torch.vdev.current_stream(1) == own
    assert torch.vdev.current_device() == 1
    assert torch.vdev.current_stream() == own and torch.vdev.current_stream(3) == previous


def test_current_stream_belongs_to_the_thread():
    torch.vdev.set_stream(torch.vdev.Stream())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.vdev.current_stream()))
    thread.start()
    thread.join()
    assert seen == [torch.vdev.default_stream()]


def test_streams_do_not_wait_for_each_other(gate):
    one, two = torch.vdev.Stream(), torch.vdev.Stream()
    gate.close(one)
    done = []
    with torch.vdev.stream(two):
        torch.vdev._launch_host_func(lambda: done.append(2))
    two.synchronize()
    assert done == [2] and two.query() and not one.query()
    gate.open()
    one.synchronize()
    assert one.query()


def test_tasks_run_in_order():
    stream = torch.vdev.Stream()
    done = []
    with torch.vdev.stream(stream):
        for i in range(200):
            torch.vdev._launch_host_func(lambda i=i: done.append(i))
    stream.synchronize()
    assert done == list(range(200))


def test_events(gate):
    one, two = torch.vdev.Stream(), torch.vdev.Stream()
    event = torch.vdev.Event()
    assert event.query()  # never recorded
    event.synchronize()
    gate.close(one)
    event.record(one)
    assert not event.query()
    order = []
    two.wait_event(event)
    with torch.vdev.stream(two):
        torch.vdev._launch_host_func(lambda: order.append("two"))
    assert not two.query()
    order.append("open")
    gate.open()
    two.synchronize()
    assert event.query() and order == ["open", "two"]


def test_wait_stream(gate):
    one, two = torch.vdev.Stream(), torch.vdev.Stream("vdev:1")
    gate.close(one)
    order = []
    with torch.vdev.stream(one):
        torch.vdev._launch_host_func(lambda: order.append(1))
    two.wait_stream(one)
    with torch.vdev.stream(two):
        torch.vdev._launch_host_func(lambda: order.append(2))
    gate.open()
    two.synchronize()
    assert order == [1, 2]


def test_an_event_is_recorded_anew(gate):
    one, two = torch.vdev.Stream(), torch.vdev.Stream()
    event = one.record_event()
    two.wait_event(event)
    gate.close(one)
    event.record(one)
    two.synchronize()  # waits for the first point only
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


def test_elapsed_time():
    stream = torch.vdev.Stream()
    start, end = torch.vdev.Event(enable_timing=True), torch.vdev.Event(enable_timing=True)
    start.record(stream)
    with torch.vdev.stream(stream):
        torch.vdev._sleep(20_000_000)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 20
    assert end.elapsed_time(start) <= -20


def test_elapsed_time_needs_timing():
    start, end = torch.vdev.Event(), torch.vdev.Event(enable_timing=True)
    start.record()
    end.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        end.elapsed_time(torch.vdev.Event(enable_timing=True))


def test_elapsed_time_needs_reached_events(gate):
    stream = torch.vdev.Stream()
    start, end = torch.vdev.Event(enable_timing=True), torch.vdev.Event(enable_timing=True)
    start.record(stream)
    gate.close(stream)
    end.record(stream)
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)


def test_an_event_stays_on_its_card():
    event = torch.vdev.Event()
    event.record(torch.vdev.default_stream(0))
    with pytest.raises(RuntimeError, match="does not match"):
        event.record(torch.vdev.default_stream(1))


def test_priorities():
    streams = [torch.vdev.Stream(priority=priority) for priority in (0, -1, 0, -1)]
    assert len({stream.stream_id for stream in streams}) == 4
    for stream in streams:
        with torch.vdev.stream(stream):
            torch.vdev._launch_host_func(lambda: None)
    torch.vdev.synchronize()
    assert all(stream.query() for stream in streams)


def test_the_pool_hands_streams_out_in_turn():
    first = [torch.vdev.Stream() for _ in range(32)]
    assert len({stream.stream_id for stream in first}) == 32
    assert torch.vdev.Stream() in first


def fail():
    raise ValueError("the reason")


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream: stream.synchronize(),
        lambda stream: torch.vdev.synchronize(),
        lambda stream: torch.accelerator.synchronize(),
        lambda stream: stream.record_event().synchronize(),
    ],
    ids=["stream", "vdev", "accelerator", "event"],
)
def test_an_error_stands_until_it_is_cleared(wait):
    stream = torch.vdev.Stream()
    skipped = []
    with torch.vdev.stream(stream):
        torch.vdev._launch_host_func(fail)
        torch.vdev._launch_host_func(lambda: skipped.append(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the reason"):
            wait(stream)
    assert skipped == []
    assert len(torch.vdev.clear_errors()) == 1
    stream.synchronize()
    torch.vdev.synchronize()
    with torch.vdev.stream(stream):
        torch.vdev._launch_host_func(lambda: skipped.append(2))
    stream.synchronize()
    assert skipped == [2]


def test_a_waiting_stream_inherits_the_error():
    one, two = torch.vdev.Stream(), torch.vdev.Stream()
    with torch.vdev.stream(one):
        torch.vdev._launch_host_func(fail)
    two.wait_stream(one)
    for stream in (two, one, two):
        with pytest.raises(RuntimeError, match="the reason"):
            stream.synchronize()
    torch.vdev.clear_errors()


def test_waiting_lets_other_threads_run(gate):
    """Every wait releases the GIL: the thread that opens the gate would never run otherwise."""
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        memory = [torch.empty(30 << 20, device="vdev")]

    def give_memory_back():
        memory.clear()  # the stream may still use it
        torch.vdev.empty_cache()

    waits = [
        stream.synchronize,
        torch.vdev.synchronize,
        torch.accelerator.synchronize,
        lambda: stream.record_event().synchronize(),
        lambda: torch.empty(1, device="vdev").fill_(1).item(),
        # torch holds the GIL here while it copies to the host.
        lambda: torch.empty(4, device="vdev").untyped_storage()._write_file(io.BytesIO(), False, True, 1),
        give_memory_back,
    ]
    for wait in waits:
        gate.opened.clear()
        gate.close(stream)
        opener = threading.Timer(0.01, gate.open)
        opener.start()
        with torch.vdev.stream(stream):
            wait()
        assert gate.opened.is_set()
        opener.join()


def test_launch_blocking(run_python):
    run_python(
        "import torch, vccl\n"
        "done = []\n"
        "torch.vdev._launch_host_func(lambda: done.append(1))\n"
        "assert done == [1]\n"
        "try:\n"
        "    torch.vdev._launch_host_func(lambda: 1 / 0)\n"
        "except RuntimeError as error:\n"
        "    assert 'ZeroDivisionError' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n",
        VDEV_LAUNCH_BLOCKING="1",
    )


def test_operators_follow_the_current_stream(gate):
    """An operator on a stream sees what was enqueued there before it."""
    x = torch.zeros(1000, device="vdev")
    host = torch.ones(1000).pin_memory()
    stream = torch.vdev.Stream()
    gate.close(stream)
    with torch.vdev.stream(stream):
        x.copy_(host, non_blocking=True)
    threading.Timer(0.01, gate.open).start()
    with torch.vdev.stream(stream):
        total = x.sum()
    stream.synchronize()
    assert total.item() == 1000


def test_many_threads_and_streams():
    """Threads that pass tensors from stream to stream and free them at once see their own numbers only."""
    failures = []

    def work(number):
        try:
            torch.vdev.set_device(number % 2)
            one, two = torch.vdev.Stream(), torch.vdev.Stream(priority=-1)
            for round_ in range(60):
                value = number * 1000 + round_
                with torch.vdev.stream(one):
                    host = torch.full((3000,), float(value)).pin_memory()
                    x = torch.empty(3000, device="vdev").copy_(host, non_blocking=True)
                    del host
                    done = one.record_event()
                with torch.vdev.stream(two):
                    two.wait_event(done)
                    x.record_stream(two)
                    y = x + 1
                    del x
                    if not y.eq(value + 1).all().item():
                        failures.append(value)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_backward_runs_on_the_forward_stream(gate):
    stream = torch.vdev.Stream("vdev:1")
    weight = torch.ones(64, device="vdev:1", requires_grad=True)
    stream.wait_stream(torch.vdev.default_stream(1))
    seen = []
    with torch.vdev.stream(stream):
        loss = (weight * 3).sum()
        weight.register_hook(lambda grad: seen.append(torch.vdev.current_stream(1)))
        loss.backward()
    torch.vdev.default_stream(1).wait_stream(stream)
    assert seen == [stream]
    assert weight.grad.eq(3).all().item()


def test_events_take_the_arguments_of_cuda():
    start, end = torch.vdev.Event(True, False), torch.vdev.Event(True)
    for event in (start, end):
        event.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    untimed = torch.vdev.Event(False, True, False)
    untimed.record(torch.vdev.current_stream())
    torch.vdev.Stream().wait_event(untimed)
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(untimed)
    assert torch.vdev.Event(device="vdev:1", enable_timing=True).device.type == "vdev"
    for event in (start, untimed, torch.Event("vdev"), torch.vdev.current_stream().record_event()):
        assert isinstance(event, torch.vdev.Event)
    assert not isinstance(object(), torch.vdev.Event)
    with pytest.raises(ValueError, match="vdev"):
        torch.vdev.Event(device="cpu")
