"""Settings of CUDA's libraries that a program may make, and NVTX.

The cards use none of the libraries. A setting is kept, so that a program reads back what it has set, and
changes nothing. The ranges of NVTX go to torch's profiler.
"""

import sys
from typing import Any

import torch

from vccl._cards import ranges
from vccl._cards.no_gpu import TUNING, NoGpuError
from vccl.cuda import cudart

__all__ = [
    "_cuda_clearCublasWorkspaces",
    "_cuda_getCublasLtWorkspaceSize",
    "_cuda_getCublasWorkspaceSize",
    "_cuda_get_conv_benchmark_empty_cache",
    "_cuda_get_cudnn_benchmark_limit",
    "_cuda_record_untuned_enable",
    "_cuda_record_untuned_is_enabled",
    "_cuda_resetCublasLtWorkspaceSize",
    "_cuda_resetCublasWorkspaceSize",
    "_cuda_setCublasLtWorkspaceSize",
    "_cuda_setCublasWorkspaceSize",
    "_cuda_set_cudnn_benchmark_limit",
    "_cuda_tunableop_enable",
    "_cuda_tunableop_is_enabled",
    "_cuda_tunableop_tuning_enable",
    "_cuda_tunableop_tuning_is_enabled",
    "_cudnn_set_conv_benchmark_empty_cache",
    "_nvtx",
]

_DEFAULT_WORKSPACE = 4096 << 10  # bytes
_settings: dict[str, Any] = {
    "cublas": _DEFAULT_WORKSPACE,
    "cublaslt": _DEFAULT_WORKSPACE,
    "limit": 10,
    "empty": True,
}


def _cuda_clearCublasWorkspaces() -> None:
    pass


def _cuda_getCublasWorkspaceSize() -> int:
    return _settings["cublas"]


def _cuda_setCublasWorkspaceSize(size: int) -> None:
    _settings["cublas"] = size


def _cuda_resetCublasWorkspaceSize() -> None:
    _settings["cublas"] = _DEFAULT_WORKSPACE


def _cuda_getCublasLtWorkspaceSize() -> int:
    return _settings["cublaslt"]


def _cuda_setCublasLtWorkspaceSize(size: int) -> None:
    _settings["cublaslt"] = size


def _cuda_resetCublasLtWorkspaceSize() -> None:
    _settings["cublaslt"] = _DEFAULT_WORKSPACE


def _cuda_get_cudnn_benchmark_limit() -> int:
    return _settings["limit"]


def _cuda_set_cudnn_benchmark_limit(limit: int) -> None:
    _settings["limit"] = limit


def _cuda_get_conv_benchmark_empty_cache() -> bool:
    return _settings["empty"]


def _cudnn_set_conv_benchmark_empty_cache(enable: bool) -> None:
    _settings["empty"] = enable


# TunableOp is off. Only switching it on is refused, because torch and programs ask in passing.
def _cuda_tunableop_is_enabled() -> bool:
    return False


def _cuda_tunableop_enable(enabled: bool) -> None:
    if enabled:
        raise NoGpuError("torch.cuda.tunable", TUNING)


_cuda_tunableop_tuning_is_enabled = _cuda_record_untuned_is_enabled = _cuda_tunableop_is_enabled
_cuda_tunableop_tuning_enable = _cuda_record_untuned_enable = _cuda_tunableop_enable


class _nvtx:
    """Takes the ranges of NVTX for the profiler, in the place of ``torch._C._nvtx``."""

    rangePushA = staticmethod(ranges.push)
    rangePop = staticmethod(ranges.pop)
    rangeStartA = staticmethod(ranges.start)
    rangeEnd = staticmethod(ranges.end)
    markA = staticmethod(ranges.mark)

    # CUDA begins and ends these when the stream comes there. A profile shows a range of the host above what
    # it launches on the stream.
    @staticmethod
    def deviceRangeStart(message: str, stream: int) -> object:
        return ranges.start(message)

    @staticmethod
    def deviceRangeEnd(handle: int, stream: int) -> None:
        ranges.end(handle)


def install() -> None:
    """Rebinds what torch took from ``torch._C`` when it was imported."""
    cuda: Any = torch.cuda
    nvtx: Any = sys.modules["torch.cuda.nvtx"]
    nvtx._nvtx = _nvtx
    # torch asks this for each LSTM, and warns if cuDNN is missing.
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    compiled: Any = torch._C
    compiled._cudart = cudart
    cuda._cudart = cudart
