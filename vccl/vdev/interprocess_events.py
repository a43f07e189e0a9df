"""Events that several processes record and wait for, with the methods of ``torch.cuda.Event``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vccl import _C

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


class SharedRecords:
    """Gives a class derived from ``torch.Event`` the methods of an interprocess event.

    The event stands for its last record, whichever process made it. Waits for a record of another process
    raise RuntimeError if that process ends, or its stream fails, before the record is reached.
    """

    _interprocess = False

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records the event on ``stream``, or on the current stream."""
        event: Any = super()
        if not self._interprocess:
            event.record(stream)
            return
        stream = stream or torch.accelerator.current_stream()
        event.record(stream)
        _C._share_event(event.event_id, stream.device_index, stream.stream_id)

    def ipc_handle(self) -> bytes:
        """Returns a handle by which another process opens the event while this process lives and has it.

        Raises:
            RuntimeError: the event was not made with ``interprocess=True``.
        """
        event: Any = super()
        if not self._interprocess:
            raise RuntimeError("ipc_handle() needs an event that was made with interprocess=True.")
        if not event.event_id:
            self.record()
        return _C._event_handle(event.event_id)

    @classmethod
    def from_ipc_handle(cls, device: torch.device | str | int, handle: bytes) -> Self:
        """Returns the event of another process as an event of ``device``.

        Raises:
            RuntimeError: the process has ended, belongs to another machine, pid namespace or user, or the
                handle is not that of an event.
        """
        module = torch.get_device_module()
        card = torch.device(_C._device_name(), device) if isinstance(device, int) else torch.device(device)
        make: Any = cls  # a class of events, which takes the argument
        event = make(interprocess=True)
        # torch makes what stands behind an event when it is first recorded.
        torch.Event.record(event, module.default_stream(card))
        _C._open_event(event.event_id, handle)
        return event


class InterprocessEvent(SharedRecords, torch.Event):
    """A ``torch.vdev.Event`` that was made with ``interprocess=True``."""

    _interprocess = True

    def __new__(cls, device: torch.device | None = None, **options: Any) -> Self:
        device = device or torch.device("vdev", _C.current_device())
        return super().__new__(cls, device, **{"interprocess": True, **options})

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Returns the milliseconds from this event to ``end_event``, if this process has recorded both."""
        return _C._elapsed_time(self, end_event)
