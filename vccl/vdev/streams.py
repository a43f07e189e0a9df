"""Makes and chooses the streams and events of the cards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from vccl import _C

from ._device import DeviceLike, index_of

# The class of torch that serves every device. Without a device it makes a stream of the accelerator.
Stream = torch.Stream


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "vdev"


class Event(torch.Event, metaclass=_EventType):
    """Makes a ``torch.Event`` of a card, with the arguments of ``torch.cuda.Event``.

    ``torch.Event`` takes them by keyword only. Its methods refuse objects of derived classes, so this class
    makes a ``torch.Event``. ``blocking``, ``interprocess`` and ``external`` change nothing: every wait
    blocks, and events cannot be shared between processes, or wait inside a graph for what is outside.
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
        return torch.Event(
            torch.device("vdev", index_of(device)),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


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
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext(contextlib.AbstractContextManager):
    """Makes a stream and its card current inside a ``with`` block. stream() returns one."""

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
        # Setting a stream also sets the card. The stream of the card from before comes last, so that this
        # card is the current one again.
        if self.stream is not None:
            for previous in self._previous.pop():
                set_stream(previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context in which ``stream`` is the current stream. None changes nothing."""
    return StreamContext(stream)


def synchronize(device: DeviceLike = None) -> None:
    """Blocks until everything that was enqueued on the card has run.

    Raises:
        RuntimeError: there is no such card, or a task on one of its streams failed, which is raised once,
        or a
            collective failed, which is raised until the program has dealt with its group (docs/errors.md).
    """
    _C.synchronize(index_of(device))


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Warns of calls that make the host wait for a card, or refuses them, on all threads from now on.

    These are the calls that wait on a GPU as well: reading an element (``item()``), results whose shape
    depends on elements (``nonzero()``, Boolean indices), copies to or from the host without
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
