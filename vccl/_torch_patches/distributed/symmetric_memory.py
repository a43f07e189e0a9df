"""Gives torch's operators on symmetric memory that are written in Python to the cards.

``torch.distributed._symmetric_memory`` has the operators of async tensor parallelism, and collectives that
leave the cores to others. They are registered for CUDA, and name ``torch.cuda``. In pose they work as they
are. On vdev this patch registers them for the cards, and gives the module a ``torch`` in which CUDA's names
are those of the cards. Where torch finds GPUs, it keeps its module, which serves them.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

_MODULE = "torch.distributed._symmetric_memory"

PATCH = Patch(
    __name__,
    without="async tensor parallelism on vdev has no kernels: `torch.ops.symm_mem.fused_all_gather_matmul` "
    "and its like raise NotImplementedError",
    until="torch names its accelerator in this module, and not CUDA",
    needed=lambda: device_type() == "vdev",
    after_import_of=_MODULE,
)

# The operators, and the functions of the module that torch registers for CUDA.
_KERNELS = {
    "get_remote_tensors": "_get_remote_tensors_default",
    "fused_all_gather_matmul": "_fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul": "_fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "_fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "_fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather": "_low_contention_all_gather",
    "_low_contention_reduce_scatter": "_low_contention_reduce_scatter",
}


class _TorchWithCards(ModuleType):
    """Stands for the module torch in torch's module. CUDA's names are those of the cards."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, device_type() if name == "cuda" else name)

    @staticmethod
    def device(device: Any, *args: Any) -> torch.device:
        if isinstance(device, str) and device.partition(":")[0] == "cuda":
            device = device.replace("cuda", device_type(), 1)
        return torch.device(device, *args)


_kept: list[torch.library.Library] = []  # an object that goes takes its kernels with it


@PATCH.action
def _register() -> None:
    import torch.distributed._symmetric_memory as module

    if torch.cuda.device_count() > 0:
        return
    vars(module)["torch"] = _TorchWithCards("torch")
    library = torch.library.Library("symm_mem", "IMPL")
    for operator, function in _KERNELS.items():
        library.impl(operator, getattr(module, function), "PrivateUse1")
    _kept.append(library)


# torch hands these to the backend NCCL alone.
@PATCH.replaces(f"{_MODULE}:put_signal", "(src, hdl, peer)")
def _put_signal(original: Callable[..., None], src: torch.Tensor, hdl: Any, peer: int) -> None:
    if src.device.type != device_type():
        return original(src, hdl, peer)
    return torch.ops.symm_mem.nccl_put_signal(src, hdl.boxed(), peer)


@PATCH.replaces(f"{_MODULE}:wait_signal", "(hdl, peer)")
def _wait_signal(original: Callable[..., None], hdl: Any, peer: int) -> None:
    if hdl.device.type != device_type():
        return original(hdl, peer)
    # Not by the operator: that of a torch that was built with CUDA is for NCCL, whatever the handle.
    return hdl.wait_signal(peer)


@PATCH.replaces(
    f"{_MODULE}:reduce_scatter_offset", "(input, out, group, *, dim, offsets=..., dst_ranks=..., red_op=...)"
)
def _reduce_scatter_offset(
    original: Callable[..., None], input: torch.Tensor, out: list[torch.Tensor], group: str, **how: Any
) -> None:
    if input.device.type != device_type():
        return original(input, out, group, **how)
    how = {"offsets": None, "dst_ranks": None, "red_op": "sum", **how}
    arguments = [how[name] for name in ("dim", "offsets", "dst_ranks", "red_op")]
    return torch.ops.symm_mem.nccl_reduce_scatter_offset(input, out, group, *arguments)
