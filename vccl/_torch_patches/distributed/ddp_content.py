"""Lets VCCL_CHECK=content compare the parameters of a model that DDP does not make equal.

With ``init_sync=False``, ``DistributedDataParallel`` takes the ranks' parameters as they are. If they differ,
every rank trains a model of its own with the mean of all gradients, and nothing says so.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from vccl import _C
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="VCCL_CHECK=content does not see that DDP(init_sync=False) got models that differ between ranks",
    until="DDP compares the ranks' parameters",
)


@PATCH.replaces(
    "torch.nn.parallel:DistributedDataParallel._ddp_init_helper",
    "(self, parameters, expect_sparse_gradient, param_to_name_mapping, static_graph)",
)
def _ddp_init_helper(
    original: Callable[..., None], self: DistributedDataParallel, *args: Any, **kwargs: Any
) -> None:
    if _C._checks_content() and vccl_backends(self.process_group):
        _compare(self)
    original(self, *args, **kwargs)


def _compare(ddp: DistributedDataParallel) -> None:
    """Raises ValueError on every rank if a parameter differs between the ranks."""
    tensors = list(_tensors_of(ddp))
    if not tensors:
        return
    device = tensors[0][1].device
    own = torch.tensor([_C._content_of(tensor) for _, tensor in tensors], dtype=torch.int64, device=device)
    size = dist.get_world_size(ddp.process_group)
    everybody = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(everybody, own, group=ddp.process_group)
    contents = torch.stack(everybody).cpu()
    differing = contents.ne(contents[0]).any(dim=0).nonzero().flatten().tolist()
    if not differing:
        return
    ranks = dist.get_process_group_ranks(ddp.process_group)
    column = contents[:, differing[0]]
    others = [str(ranks[member]) for member in range(size) if column[member] != column[0]]
    rest = len(differing) - 1
    more = f" and {rest} other{'s' if rest > 1 else ''}" if rest else ""
    where = f"rank{'s' if len(others) > 1 else ''} {', '.join(others)}"
    verb = "are" if rest else "is"
    raise ValueError(
        "DDP was given models that differ between ranks (VCCL_CHECK=content): "
        f"{tensors[differing[0]][0]}{more} on {where} {verb} not what rank {ranks[0]} has. "
        "Give all ranks the same state_dict, or construct DDP with init_sync=True, which broadcasts it."
    )


def _tensors_of(ddp: DistributedDataParallel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields what has to be the same on all ranks and can be compared.

    Buffers are left out: the first forward broadcasts them, unless each rank is to have its own.
    """
    for name, parameter in ddp.module.named_parameters():
        is_plain = type(parameter) in (torch.nn.Parameter, torch.Tensor) and not parameter.is_meta
        if name not in ddp.parameters_to_ignore and is_plain and parameter.layout is torch.strided:
            yield name, parameter
