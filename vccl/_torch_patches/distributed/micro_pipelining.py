"""Lets ``torch.compile`` turn tensor parallelism into async tensor parallelism on vdev.

Inductor's pass (``torch._inductor.config._micro_pipeline_tp``) fuses an all_gather with the products behind
it, and a product with the reduce_scatter behind it. It does nothing where NCCL is not available, as if
nothing could run the fused operators then. On vdev the cards run them (``symmetric_memory.py``).
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from vccl._torch_patches.distributed import symmetric_memory
from vccl._torch_patches.registry import Patch

_MODULE = "torch._inductor.fx_passes.micro_pipeline_tp"

PATCH = Patch(
    __name__,
    without="`torch.compile` with `_micro_pipeline_tp` leaves collectives and products on vdev as they are",
    until="the pass asks the device for symmetric memory, and not for NCCL",
    versions=symmetric_memory.PATCH.versions,
    needed=symmetric_memory.PATCH.needed,
    after_import_of=_MODULE,
)


def _with_nccl(original: Callable[..., None], *args: Any) -> None:
    found = dist.is_nccl_available
    vars(dist)["is_nccl_available"] = lambda: True
    try:
        original(*args)
    finally:
        vars(dist)["is_nccl_available"] = found


PATCH.replaces(f"{_MODULE}:fuse_all_gather_matmul", "(all_gather)")(_with_nccl)
PATCH.replaces(f"{_MODULE}:fuse_matmul_reduce_scatter", "(reduce_scatter)")(_with_nccl)
