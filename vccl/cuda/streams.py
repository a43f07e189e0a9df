"""The base classes of ``torch.cuda.Stream`` and ``torch.cuda.Event``, and the functions of streams."""

from collections.abc import Callable
from typing import Any

import torch

from vccl import _C
from vccl.cuda.remaking import remake
from vccl.vdev._arguments import whole_number
from vccl.vdev.interprocess_events import SharedRecords

__all__ = [
    "_CudaEventBase",
    "_CudaStreamBase",
    "_cuda_getCurrentRawStream",
    "_cuda_getCurrentStream",
    "_cuda_getDefaultStream",
    "_cuda_getStreamFromExternal",
    "_cuda_setStream",
]

# torch names a stream by (id, card, device type).
StreamName = tuple[int, int, int]
_CUDA = torch._C._autograd.DeviceType.CUDA.value


class _CudaStreamBase(torch.Stream):
    """A stream of a card. Derived classes are ``torch.cuda.Stream`` and ``torch.cuda.ExternalStream``."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> "_CudaStreamBase":
        if stream_ptr:
            stream_id, device_index, device_type = _cuda_getStreamFromExternal(
                stream_ptr, _C.current_device()
            )
        if device_type:
            return super().__new__(
                cls, stream_id=stream_id, device_index=device_index, device_type=device_type
            )
        torch.cuda._lazy_init()
        return super().__new__(cls, torch.device("cuda", _C.current_device()), priority=min(priority, 0))

    @property
    def cuda_stream(self) -> int:
        """Returns a number that stands for the cudaStream_t. The default stream's is 0, as on CUDA."""
        handle: Any = super()
        return handle.native_handle if self.stream_id else 0

    @property
    def priority(self) -> int:
        return _C._stream_priority(self.device_index, self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -1)


class _CudaEventBase(SharedRecords, torch.Event):
    """An event of a card. The derived class is ``torch.cuda.Event``."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> "_CudaEventBase":
        event = super().__new__(
            cls,
            torch.device("cuda"),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )
        event._interprocess = interprocess
        return event

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]  # as torch.cuda.Event's
        """Returns the card that the event was first recorded on, or None before that."""
        event: Any = super()
        return event.device if self.event_id else None

    @property
    def cuda_event(self) -> int:
        return self.event_id

    def elapsed_time(self, end_event: torch.Event) -> float:
        return _C._elapsed_time(self, end_event)


def _cuda_getCurrentStream(index: int) -> StreamName:
    stream = torch._C._accelerator_getStream(index)
    return stream.stream_id, stream.device_index, _CUDA


def _cuda_getDefaultStream(index: int) -> StreamName:
    _C.check_device(index)
    return 0, index, _CUDA


def _cuda_getStreamFromExternal(pointer: int, index: int) -> StreamName:
    pointer = whole_number(pointer, "the pointer of a stream")
    stream_id = _C._stream_at(index, pointer) if pointer else 0  # the default stream's pointer is null
    return stream_id, index, _CUDA


def _cuda_getCurrentRawStream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
    torch._C._accelerator_setStream(
        torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


def _launch_host_func(function: Callable[[], object]) -> None:
    """Enqueues a Python function on the current stream, as ``torch.vdev`` can.

    torch.cuda of a GPU has no such function. Tests of streams need it.
    """
    torch.cuda._lazy_init()
    _C.launch_host_func(function)


def install() -> None:
    """Makes the classes of ``torch.cuda.streams`` anew over the base classes."""
    streams: Any = remake("torch.cuda.streams", ("Stream", "Event", "ExternalStream"))
    cuda: Any = torch.cuda
    assert cuda.Stream is streams.Stream
    cuda._launch_host_func = _launch_host_func
    cuda.clear_errors = _C.clear_errors  # has no counterpart: an error of a GPU stays until the process ends
