"""The base class of ``torch.cuda.CUDAGraph``, and the functions of graphs."""

from typing import NoReturn

import torch

from vccl import _C
from vccl._cards.no_gpu import NoGpuError
from vccl.cuda.remaking import remake

__all__ = ["_CUDAGraph", "_cuda_isCurrentStreamCapturing", "_graph_pool_handle", "_host_emptyCache"]

_cuda_isCurrentStreamCapturing = _C.is_current_stream_capturing
_graph_pool_handle = _C.graph_pool_handle


class _CUDAGraph(_C.Graph):
    """A graph of a card. The derived class is ``torch.cuda.CUDAGraph``."""

    def raw_cuda_graph(self) -> NoReturn:
        raise NoGpuError("torch.cuda.CUDAGraph.raw_cuda_graph", "Use debug_dump() to see what is captured.")

    def raw_cuda_graph_exec(self) -> NoReturn:
        raise NoGpuError("torch.cuda.CUDAGraph.raw_cuda_graph_exec", "Use replay().")


def _host_emptyCache() -> None:
    torch.accelerator.empty_host_cache()


def install() -> None:
    """Makes the classes of ``torch.cuda.graphs`` anew over the base class."""
    remake("torch.cuda.graphs", torch.cuda.graphs.__all__)
