"""Lets object collectives work where numpy is not installed.

torch takes the bytes of a pickled object out of a tensor with numpy, which it does not require.
"""

import ctypes
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.storage
from torch.distributed import distributed_c10d

from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='`all_gather_object`, `broadcast_object_list` and the like raise "Numpy is not available" where '
    "numpy is not installed",
    until="torch reads the bytes without numpy, or requires it",
    needed=lambda: not torch.storage.HAS_NUMPY,
)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_tensor_to_object",
    {"<2.14": "(tensor, tensor_size, group)", ">=2.14": "(tensor, tensor_size, group, weights_only=...)"},
)
def _tensor_to_object(
    original: Callable[..., object],
    tensor: torch.Tensor,
    tensor_size: int,
    group: Any,
    *weights_only: bool,  # one, or none, as versions before 2.14 have no such parameter
    **named: bool,
) -> object:
    kept = tensor.cpu().contiguous()
    pickled = ctypes.string_at(kept.data_ptr(), min(int(tensor_size), kept.numel()))
    if any(weights_only) or named.get("weights_only"):
        return torch.load(io.BytesIO(pickled), weights_only=True)
    return distributed_c10d._unpickler(io.BytesIO(pickled)).load()
