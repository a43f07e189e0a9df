"""Lets DDP take its bfloat16 hooks, and name the backend in its logging data.

``register_comm_hook`` refuses the hooks of that name without NCCL or XCCL, although every backend that
reduces bfloat16 can run them. The logging data hold the name of the group's backend type, which is "custom"
for every backend from outside.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from vccl._groups.backends import devices_of_vccl, vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='DDP refuses the bfloat16 hooks, and logs the backend as "custom"',
    until="DDP asks the backend",
    upstream=("pytorch/pytorch#63260",),
)


@PATCH.replaces("torch.nn.parallel:DistributedDataParallel._check_comm_hook", "(self, hook)")
def _check_comm_hook(
    original: Callable[..., None], self: DistributedDataParallel, hook: Callable[..., Any]
) -> None:
    if callable(hook) and self.device_type in devices_of_vccl(self.process_group):
        hook = _renamed(hook)
    original(self, hook)


def _renamed(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the hook's signature and another name. DDP checks it, and never calls it."""

    @functools.wraps(hook)
    def stand_in(state: object, bucket: GradBucket) -> Any:
        return hook(state, bucket)

    stand_in.__name__ = f"{getattr(hook, '__name__', 'hook')} for vccl"
    return stand_in


@PATCH.replaces("torch.nn.parallel:DistributedDataParallel._get_ddp_logging_data", "(self)")
def _get_ddp_logging_data(
    original: Callable[..., dict[str, Any]], self: DistributedDataParallel
) -> dict[str, Any]:
    data = original(self)
    if data.get("backend_name") == "custom" and vccl_backends(self.process_group):
        data["backend_name"] = "vccl"
    return data
