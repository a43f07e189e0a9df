"""Lets a group of vccl tell how many collectives it has run, before torch 2.14.

``ProcessGroup`` of those versions passes the question on to its backend for four built-in backend types, and
raises for every other type. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch asks the backend itself, which needs no
patch.
"""

from collections.abc import Callable

from torch.distributed import ProcessGroup

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="`ProcessGroup._get_sequence_number_for_group` raises for all but four built-in backend types",
    until="2.14 is the oldest torch: there `ProcessGroup` asks the backend",
    versions="<2.14",
    upstream=("pytorch/pytorch#190162", "pytorch/pytorch#124138"),
)


@PATCH.replaces("torch.distributed:ProcessGroup._get_sequence_number_for_group", "(self)")
def _get_sequence_number_for_group(original: Callable[..., int], self: ProcessGroup) -> int:
    backends = vccl_backends(self)
    return backends[0]._get_sequence_number_for_group() if backends else original(self)


@PATCH.replaces("torch.distributed:ProcessGroup._set_sequence_number_for_group", "(self)")
def _set_sequence_number_for_group(original: Callable[..., None], self: ProcessGroup) -> None:
    backends = vccl_backends(self)
    if not backends:
        return original(self)
    for backend in backends:
        backend._set_sequence_number_for_group()
    return None
