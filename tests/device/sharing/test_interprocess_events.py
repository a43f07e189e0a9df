"""Events that two processes record and wait for."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from other_process import KEPT, OtherProcess, keep


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.end()


def open_event(handle: bytes) -> bool:
    KEPT["event"] = torch.vdev.Event.from_ipc_handle("vdev:1", handle)
    return KEPT["event"].query()


def wait_on_a_stream() -> bool:
    """Lets a stream wait, and then write what this process finds in the shared tensor."""
    stream = KEPT["stream"] = torch.vdev.Stream("vdev:1")
    KEPT["event"].wait(stream)
    with torch.vdev.stream(stream):
        KEPT["seen"] = KEPT["x"].to("vdev:1", non_blocking=True) + 1
    return stream.query()


def finish() -> tuple[bool, list]:
    KEPT["event"].synchronize()
    KEPT["stream"].synchronize()
    return KEPT["event"].query(), KEPT["seen"].tolist()


def record_behind_a_sleep() -> bytes:
    event = KEPT["mine"] = torch.vdev.Event(interprocess=True)
    torch.vdev._sleep(10**14)
    event.record()
    return event.ipc_handle()


def record_again() -> bool:
    KEPT["event"].record(torch.vdev.current_stream("vdev:1"))
    torch.vdev.synchronize("vdev:1")
    return KEPT["event"].query()


def raised(call: Any) -> str:
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def test_another_process_waits(other, gate):
    event = torch.vdev.Event(True, False, True)
    assert isinstance(event, torch.vdev.Event)
    assert event.query()  # was not recorded
    stream = torch.vdev.Stream()
    x = torch.zeros(3, device="vdev")
    other.call(keep, "x", x)  # before the gate is closed, because sending waits for the card
    gate.close(stream)
    with torch.vdev.stream(stream):
        x += 5
        event.record()
    assert not other.call(open_event, event.ipc_handle())
    assert not other.call(wait_on_a_stream)
    gate.open()
    assert other.call(finish) == (True, [6, 6, 6])
    assert event.query()
    assert other.call(record_again)
    event.synchronize()
    assert event.query()


def test_the_end_of_the_recorder_is_an_error(request):
    mortal = OtherProcess()
    request.addfinalizer(mortal.end)
    handle = mortal.call(record_behind_a_sleep)
    event = torch.vdev.Event.from_ipc_handle("vdev", handle)
    assert not event.query()
    stream = torch.vdev.Stream()
    stream.wait_event(event)
    assert not stream.query()
    mortal.end()
    ended = f"the process {mortal.process.pid} that has recorded it has ended"
    assert ended in raised(stream.synchronize)
    assert ended in raised(event.synchronize)
    assert ended in raised(event.query)
    torch.vdev.clear_errors()
    assert "has ended" in raised(lambda: torch.vdev.Event.from_ipc_handle("vdev", handle))


def test_what_is_refused():
    assert "cannot be opened" in raised(lambda: torch.vdev.Event.from_ipc_handle("vdev", b"nonsense"))
    with pytest.raises(Exception, match=r"ipc is not supported|interprocess=True"):
        torch.vdev.Event().ipc_handle()


def test_a_record_in_a_graph_is_refused():
    event = torch.vdev.Event(interprocess=True)
    with torch.vdev.graph(torch.vdev.VDEVGraph()):
        assert "while a stream is captured" in raised(event.record)
    assert "its record has failed" in raised(event.ipc_handle)
    event.record()
    assert torch.vdev.Event.from_ipc_handle("vdev", event.ipc_handle()) is not None


def test_peers():
    assert torch.vdev.can_device_access_peer(0, "vdev:1")
    assert not torch.vdev.can_device_access_peer(1, 1)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.vdev.can_device_access_peer(0, 64)
