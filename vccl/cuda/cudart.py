"""Stands for ``torch._C._cudart``: the functions of the CUDA runtime that torch offers to programs."""

import enum

from vccl import _C


class cudaError(enum.IntEnum):
    """The codes of the CUDA runtime. As in torch, every number is one, whether it has a name here or not."""

    success = 0
    invalidValue = 1
    hostMemoryAlreadyRegistered = 712
    hostMemoryNotRegistered = 713
    notSupported = 801

    @classmethod
    def _missing_(cls, value: object) -> "cudaError | None":
        if not isinstance(value, int):
            return None
        error = int.__new__(cls, value)
        error._name_, error._value_ = "???", value
        return error


# The runtime's words for its codes.
_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    35: "CUDA driver version is insufficient for CUDA runtime version",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    98: "invalid device function",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    200: "device kernel image is invalid",
    201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    217: "peer access is not supported between these two devices",
    400: "invalid resource handle",
    500: "named symbol not found",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch",
    702: "the launch timed out and was terminated",
    704: "peer access is already enabled",
    705: "peer access has not been enabled",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    716: "misaligned address",
    718: "invalid program counter",
    719: "unspecified launch failure",
    800: "operation not permitted",
    801: "operation not supported",
    900: "operation not permitted when stream is capturing",
    901: "operation failed due to a previous error during capture",
    999: "unknown error",
}


def cudaGetErrorString(error: cudaError) -> str:
    return _TEXTS.get(int(error), "unrecognized error code")


def cudaMemGetInfo(device: int) -> tuple[int, int]:
    """Returns the bytes that the allocator may still take from the card, and the card's capacity in bytes."""
    import torch

    return torch.accelerator.get_memory_info(device)


# Nobody records what these two delimit.
def cudaProfilerStart() -> cudaError:
    return cudaError.success


def cudaProfilerStop() -> cudaError:
    return cudaError.success


def cudaHostRegister(pointer: int, size: int, flags: int) -> cudaError:
    """Makes memory count as pinned. `flags` say who may map it, which everybody may here."""
    return cudaError(_C._register_host_memory(pointer, size))


def cudaHostUnregister(pointer: int) -> cudaError:
    return cudaError(_C._unregister_host_memory(pointer))


# A stream made here could not be handed to torch, which takes streams of other libraries by their pointer.
def cudaStreamCreate(pointer: int) -> cudaError:
    return cudaError.notSupported


def cudaStreamDestroy(pointer: int) -> cudaError:
    return cudaError.notSupported


def cudaDeviceSynchronize() -> cudaError:
    _C.synchronize(_C.current_device())
    return cudaError.success
