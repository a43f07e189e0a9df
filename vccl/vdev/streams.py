"""Streams and events of the cards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from vccl import _C

from ._device import DeviceLike, index_of

# torch's device-independent classes, which already mean the accelerator when no device is given.
Stream = torch.Stream
Event = torch.Event


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The calling thread's current stream on the card."""
    return torch._C._accelerator_getStream(index_of(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The card's default stream, the current one until another is set."""
    index = index_of(device)
    _C.check_device(index)
    device_type = int(torch._C._autograd.DeviceType.PrivateUse1)
    return torch.Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the thread's current stream, and its card the current card. None changes nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext(contextlib.AbstractContextManager):
    """Makes a stream, and its card, current for a while; see stream()."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[torch.Stream, ...]] = []  # one entry for each time it was entered

    def __enter__(self) -> None:
        if self.stream is None:
            return
        here = current_stream()
        there = () if here.device == self.stream.device else (current_stream(self.stream.device),)
        self._previous.append((*there, here))
        set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        # Setting a stream also sets the card, and the one from before is to stay: its stream comes last.
        if self.stream is not None:
            for previous in self._previous.pop():
                set_stream(previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context in which ``stream`` is the current stream; None changes nothing."""
    return StreamContext(stream)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything enqueued on the card has run.

    Raises:
        RuntimeError: a task on one of the card's streams failed (raised once); there is no such card.
    """
    _C.synchronize(index_of(device))


def _sleep(cycles: int) -> None:
    """Enqueues a task on the current stream that sleeps for ``cycles`` nanoseconds."""
    _C.sleep(int(cycles))


def _launch_host_func(function: Callable[[], object]) -> None:
    """Enqueues a Python function on the current stream, as cudaLaunchHostFunc does.

    What it raises becomes the stream's error, a RuntimeError at the next synchronisation. It must not
    wait for the stream that it runs on.
    """
    _C.launch_host_func(function)
