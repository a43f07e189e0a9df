"""Stands for ``torch._C._cudart``: the functions of the CUDA runtime that torch offers to programs."""

import enum

from vccl import _C


class cudaError(enum.IntEnum):
    success = 0
    invalidValue = 1
    notSupported = 801


def cudaGetErrorString(error: cudaError) -> str:
    return {cudaError.success: "no error", cudaError.invalidValue: "invalid argument"}.get(
        error, "operation not supported"
    )


def cudaMemGetInfo(device: int) -> tuple[int, int]:
    """Returns the bytes that the allocator may still take from the card, and the card's capacity in bytes."""
    import torch

    return torch.accelerator.get_memory_info(device)


# Nobody records what these two delimit.
def cudaProfilerStart() -> cudaError:
    return cudaError.success


def cudaProfilerStop() -> cudaError:
    return cudaError.success


# A copy from memory that the runtime does not know as pinned waits, so there is nothing to register.
def cudaHostRegister(pointer: int, size: int, flags: int) -> cudaError:
    return cudaError.success


def cudaHostUnregister(pointer: int) -> cudaError:
    return cudaError.success


# A stream made here could not be handed to torch, which takes streams of other libraries by their pointer.
def cudaStreamCreate(pointer: int) -> cudaError:
    return cudaError.notSupported


def cudaStreamDestroy(pointer: int) -> cudaError:
    return cudaError.notSupported


def cudaDeviceSynchronize() -> cudaError:
    _C.synchronize(_C.current_device())
    return cudaError.success
