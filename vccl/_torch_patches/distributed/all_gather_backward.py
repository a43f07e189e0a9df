"""Lets ``torch.distributed.nn.functional._all_gather_base`` be differentiated.

Its backward raises "Backend not supported!" unless the group is named nccl or xccl, although it needs nothing
but reduce_scatter.

The import of torch.distributed.nn takes 3 ms, and has to come before the first group: the functions of that
module keep the default group of that moment as a default argument, and the group's threads would live until
the interpreter is gone.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="`torch.distributed.nn.functional._all_gather_base` cannot be differentiated: "
    '"Backend not supported!"',
    until="its backward asks what the backend can do",
    upstream=("pytorch/pytorch#168213",),
)


@PATCH.replaces("torch.distributed.nn.functional:_AllGatherBase.backward", "(ctx, grad_output)")
def _backward(
    original: Callable[..., tuple[Any, ...]], ctx: Any, grad_output: torch.Tensor
) -> tuple[Any, ...]:
    group = ctx.group or dist.group.WORLD
    if not vccl_backends(group):
        return original(ctx, grad_output)
    rows = grad_output.shape[0] // dist.get_world_size(group)
    grad_input = grad_output.new_empty((rows, *grad_output.shape[1:]))
    dist.reduce_scatter_tensor(grad_input, grad_output.contiguous(), group=group)
    return None, grad_input, None
