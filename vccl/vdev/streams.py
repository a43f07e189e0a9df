"""Makes and chooses the streams and events of the cards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from vccl import _C

from ._arguments import stream_or_none, whole_number
from ._device import DeviceLike, index_of
from .interprocess_events import InterprocessEvent


class _StreamType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Stream) and instance.device.type == "vdev"


class Stream(torch.Stream, metaclass=_StreamType):
    """Makes a ``torch.Stream`` of a card, with the arguments of ``torch.Stream``.

    ``priority`` is 0 or -1 (high); positive numbers mean 0, as on CUDA. Where there are fewer cores than
    streams with work, a stream of high priority begins its next operator before one of priority 0 does
    (docs/operators.md). ``native_handle`` is the pointer that ExternalStream() takes.
    """

    def __new__(  # type: ignore[misc]  # a torch.Stream is no instance of a class derived from it
        cls, device: DeviceLike = None, *, priority: int = 0, **names: int
    ) -> torch.Stream:
        if names:  # stream_id, device_index and device_type name a stream that there is
            return torch.Stream(**names)
        return torch.Stream(torch.device("vdev", index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the lowest and the highest priority, (0, -1)."""
        return (0, -1)


def get_stream_from_external(data_ptr: int, device: DeviceLike = None) -> torch.Stream:
    """Returns the stream of a card for the pointer that its ``native_handle`` is.

    The stream belongs to whoever made it, who has to keep it for as long as the result is used.

    Raises:
        TypeError, ValueError: ``data_ptr`` is no pointer.
        RuntimeError: no stream of the card has this pointer.
    """
    index, data_ptr = index_of(device), whole_number(data_ptr, "the pointer of a stream")
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    stream_id = _C._stream_at(index, data_ptr)
    return torch.Stream(stream_id=stream_id, device_index=index, device_type=device_type)


class ExternalStream(Stream):
    """Makes the stream of get_stream_from_external(), under the name of ``torch.cuda.ExternalStream``."""

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> torch.Stream:  # type: ignore[misc]
        return get_stream_from_external(stream_ptr, device)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "vdev"


class Event(torch.Event, metaclass=_EventType):
    """Makes a ``torch.Event`` of a card, with the arguments of ``torch.cuda.Event``.

    ``torch.Event`` takes them by keyword only. Its methods refuse objects of derived classes, so this class
    makes a ``torch.Event``. ``blocking`` and ``external`` change nothing: every wait blocks, and events
    cannot wait inside a graph for what is outside. With ``interprocess`` the event has ``ipc_handle()``, and
    ``Event.from_ipc_handle(device, handle)`` returns it in another process. Such an event is of a derived
    class, so record it with ``event.record(stream)``, not with ``stream.record_event(event)``.
    """

    def __new__(  # type: ignore[misc]  # a torch.Event is no instance of a class derived from it
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        *,
        device: DeviceLike = None,
    ) -> torch.Event:
        kind = InterprocessEvent if interprocess else torch.Event
        return kind(
            torch.device("vdev", index_of(device)),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )

    @classmethod
    def from_ipc_handle(cls, device: DeviceLike, handle: bytes) -> torch.Event:
        """Returns the event of another process, which ``ipc_handle()`` has described, as one of ``device``.

        Raises:
            RuntimeError: the process has ended, belongs to another machine, pid namespace or user, or the
                handle is not that of an event.
        """
        return InterprocessEvent.from_ipc_handle(torch.device("vdev", index_of(device)), handle)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """Returns the stream that is current on the card in the calling thread."""
    return torch.accelerator.current_stream(index_of(device))  # which torch.compile can trace


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """Returns the default stream of the card, which is the current one until another is set."""
    index = index_of(device)
    _C.check_device(index)
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return torch.Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the thread's current stream, and its card the current card. None changes nothing."""
    if stream_or_none(stream) is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext(contextlib.AbstractContextManager):
    """Makes a stream and its card current inside a ``with`` block. stream() returns such a context."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream_or_none(stream)
        self._previous: list[tuple[torch.Stream, ...]] = []  # one entry for each time it was entered

    def __enter__(self) -> None:
        if self.stream is None:
            return
        here = current_stream()
        there = () if here.device == self.stream.device else (current_stream(self.stream.device),)
        self._previous.append((*there, here))
        set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        # Setting a stream also sets the card. The stream of the card from before comes last, so that this
        # card is the current one again.
        if self.stream is not None:
            for previous in self._previous.pop():
                set_stream(previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context in which ``stream`` is the current stream. None changes nothing."""
    return StreamContext(stream)


def synchronize(device: DeviceLike = None) -> None:
    """Blocks until everything that was enqueued on the card has run, and its messages have ended.

    Raises:
        RuntimeError: there is no such card, or something has failed on one of its streams: a kernel, which is
            raised while anything depends on it; a host function, which is raised until clear_errors(); or a
            collective or a message, which is raised until its group has been dealt with (docs/errors.md).
    """
    _C.synchronize(index_of(device))


def clear_errors() -> list[str]:
    """Forgets the failures on the cards, and returns their texts, once the program's streams have run.

    The program says with this call that it knows of the failures of kernels, copies and host functions so
    far. Streams do not raise them any more, and memory that they should have written may be read: it holds
    what was there before, or a part of the result. The failures of collectives stay until the program deals
    with their groups, and an error with ``VDEV_STRICT=1`` stays until the process ends.

    Raises:
        RuntimeError: the process is a forked child of a process that had used a card.
    """
    return _C.clear_errors()


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Warns of calls that make the host wait for a card, or refuses them, on all threads from now on.

    These are the calls that wait on a GPU as well: reading an element (``item()``), results whose shape
    depends on elements (``nonzero()``, ``to_sparse()``, Boolean indices), copies to or from the host without
    ``non_blocking``, and ``Stream.synchronize()``. As in torch.cuda, ``synchronize()`` and events do not
    count. Nor do waits that a GPU does not have (docs/operators.md).

    Args:
        debug_mode: ``"default"`` or 0 allows these calls, ``"warn"`` or 1 gives a UserWarning, and
            ``"error"`` or 2 raises a RuntimeError.

    Raises:
        RuntimeError: there is no such mode.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    _C._set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """Returns the mode of ``set_sync_debug_mode()`` as a number."""
    return _C._get_sync_debug_mode()


def _sleep(cycles: int) -> None:
    """Enqueues a task on the current stream that sleeps for ``cycles`` nanoseconds."""
    _C.sleep(int(cycles))


def _launch_host_func(function: Callable[[], object]) -> None:
    """Enqueues a Python function on the current stream, as cudaLaunchHostFunc does.

    An exception of the function becomes the stream's error, and the next synchronisation raises it as a
    RuntimeError. The function must not wait for the stream that it runs on.
    """
    _C.launch_host_func(function)
