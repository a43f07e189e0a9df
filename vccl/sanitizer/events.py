"""Finds waits for events that nobody records.

Such a wait orders nothing. torch does not tell a backend of it, so the methods of its classes are replaced.
A wait that comes before the first record is right: the first turn of a loop over buffers has nothing to wait
for. So a wait is judged at the end, when the event will not be recorded any more.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from typing import Any

import torch

from vccl import _C
from vccl._device_type import device_type

_MOST_EVENTS = 64  # that one line's waits keep
_WAITS = ((torch.Event, "wait"), (torch.Event, "synchronize"), (torch.Stream, "wait_event"))
_id_of: Any = torch.Event.event_id
_device_of: Any = torch.Event.device
_current: Waits | None = None


class Waits:
    """The waits for events, by the lines of the program that wait.

    A line counts as right from the first of its events on that is recorded, before the wait or after it: then
    the program has the record, and a loop has only ended before the record of its last events.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._right: set[tuple[str, int]] = set()
        self._open: dict[tuple[str, int], tuple[dict[str, Any], deque[torch.Event]]] = {}

    def note(self, event: torch.Event, call: str, stream: torch.Stream | None) -> None:
        """Notes that ``stream``, or the calling thread if it is None, waits for the event right now."""
        if self._process != os.getpid():  # a forked child, whose parent may record the events
            self._forget()
        card, number = (stream.device_index, stream.stream_id) if stream else (-1, 0)
        second = _C._races_place(call, card, number)
        place = (second["file"], second["line"])
        if place in self._right:
            return
        _, events = self._open.setdefault(place, (second, deque(maxlen=_MOST_EVENTS)))
        events.append(event)
        if _any_is_recorded(events):
            self._right.add(place)
            self._open.pop(place, None)

    def end(self) -> list[dict[str, Any]]:
        """Returns the waits for events that were not recorded until now, and forgets all waits."""
        found = list(self._open.values()) if self._process == os.getpid() else []
        self._open.clear()
        return [_raw(second) for second, events in found if not _any_is_recorded(events)]


def follow(waits: Waits | None) -> None:
    """Notes waits in ``waits`` from now on, or nowhere."""
    global _current
    _current = waits
    if waits is not None:
        _install()


def _any_is_recorded(events: deque[torch.Event]) -> bool:
    return any(_id_of.__get__(event) for event in list(events))  # other threads may append


def _raw(second: dict[str, Any]) -> dict[str, Any]:
    """Returns the find in the detector's form."""
    return {
        "what": "unrecorded",
        "first": None,
        "second": second,
        "first_writes": False,
        "second_writes": False,
        "allocated": None,
        "freed": None,
        "was_freed": False,
        "address": 0,
        "shape": [],
        "dtype": "",
        "waited_ns": 0,
    }


@functools.cache
def _install() -> None:
    """Puts the notes into torch's methods. Further calls do nothing."""
    for owner, name in _WAITS:
        _C._add_to_type(owner, name, _noting(owner, name, getattr(owner, name)))


def _noting(owner: Any, name: str, method: Any) -> Any:
    call = f"{owner.__name__}.{name}"

    @functools.wraps(method)
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        waits = _current
        if waits is not None and _C._races_on():
            _note(waits, call, self, *arguments, **named)
        return method(self, *arguments, **named)

    return noting


def _note(waits: Waits, call: str, self: Any, *arguments: Any, **named: Any) -> None:
    other = arguments[0] if arguments else next(iter(named.values()), None)
    event, stream = (other, self) if isinstance(self, torch.Stream) else (self, other)
    if not isinstance(event, torch.Event):  # torch raises
        return
    device = _device_of.__get__(event)
    if device is None or device.type != device_type():
        return
    if call == "Event.wait" and stream is None:
        stream = torch.accelerator.current_stream(device.index)
    waits.note(event, call, stream)
