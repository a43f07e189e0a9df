"""Waits for events that nobody records, which are known at the end, and right waits that come first."""

import inspect
import os

import pytest
import torch

import vccl.sanitizer
from vccl.sanitizer import reports

KIND = "wait for an event that was never recorded"


def current():
    return torch.vdev.current_stream()


def stream_waits(event):
    torch.vdev.Stream().wait_event(event)  # wait


def event_waits(event):
    event.wait()  # wait


def event_waits_on_a_stream(event):
    event.wait(torch.vdev.Stream())  # wait


def host_waits(event):
    event.synchronize()  # wait


WAITS = [stream_waits, event_waits, event_waits_on_a_stream, host_waits]
waits = pytest.mark.parametrize("wait", WAITS)


def line_of(function):
    lines, start = inspect.getsourcelines(function)
    (line,) = [start + i for i, line in enumerate(lines) if line.endswith("# wait\n")]
    return line


def reports_of(play):
    with vccl.sanitizer.enabled() as found:
        play()
    return found.reports


@waits
def test_the_event_is_never_recorded(wait):
    (report,) = reports_of(lambda: wait(torch.vdev.Event()))
    assert report["kind"] == KIND and report["first"] is None
    assert (report["second"]["file"], report["second"]["line"]) == (__file__, line_of(wait))
    assert report["second"]["stream"] == {
        event_waits: "the default stream of vdev:0",
        host_waits: "the main thread",
    }.get(wait, report["second"]["stream"])
    assert "`event.record()`" in report["missing"] and f"line {line_of(wait)}" in report["missing"]
    text = reports.text_of(report)
    assert KIND in text and f":{line_of(wait)}" in text


@waits
@pytest.mark.parametrize("first", ["record", "wait"])
def test_the_event_is_recorded(wait, first):
    def play():
        event = torch.vdev.Event()
        if first == "record":
            event.record()
        wait(event)
        current().record_event(event)

    assert reports_of(play) == []


def test_a_loop_that_ends_before_the_last_records():
    """Its line of waits has the record for other events."""

    def play():
        empty = [torch.vdev.Event() for _ in range(3)]
        for step in range(4):
            current().wait_event(empty[step % 3])
            if step < 2:
                empty[step % 3].record()

    assert reports_of(play) == []


def test_an_event_that_no_variable_holds_any_more():
    def play():
        for _ in range(200):
            current().wait_event(torch.vdev.Event())

    (report,) = reports_of(play)
    assert report["kind"] == KIND


def test_each_line_is_reported():
    def play():
        event = torch.vdev.Event()
        current().wait_event(event)
        event.synchronize()

    assert [report["kind"] for report in reports_of(play)] == [KIND, KIND]


def test_events_of_other_devices_and_wrong_arguments():
    def play():
        with pytest.raises((TypeError, RuntimeError)):
            torch.Stream("vdev").wait_event(3)
        with pytest.raises((TypeError, RuntimeError)):
            torch.Stream("vdev").wait_event()
        torch.vdev.Event().query()  # no wait

    assert reports_of(play) == []


def test_it_does_not_raise():
    with vccl.sanitizer.enabled(raises=True) as found:
        torch.vdev.Event().wait()
    assert found.count == 1


def test_an_inner_body_has_its_own_waits():
    with vccl.sanitizer.enabled() as outer:
        event = torch.vdev.Event()
        current().wait_event(event)
        with vccl.sanitizer.enabled() as inner:
            torch.vdev.Event().synchronize()
        assert [report["second"]["op"] for report in inner.reports] == ["Event.synchronize"]
        event.record()
    assert outer.reports == []


def test_a_forked_child_does_not_judge_the_waits_of_its_parent():
    with vccl.sanitizer.enabled() as found:
        current().wait_event(torch.vdev.Event())
        if (child := os.fork()) == 0:
            os._exit(len(found.waits.end()))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert found.count == 1
