"""Lets groups of gloo serve cards that pose as CUDA, as torch's gloo serves GPUs.

The gloo of torch's CPU build says that it serves CUDA, and ends in a segmentation fault there. So a backend
of vccl's serves the cards of such a group. It takes what gloo takes, and knows none of NCCL's limits.
"""

import functools
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from vccl._C import ProcessGroupVccl

# What torch shows as the backend of the group's cards.
NAME = "vccl_for_gloo"


def _create(options: "_DistributedBackendOptions", of_gloo: object) -> "ProcessGroupVccl":
    """Makes the backend of a group's cards. The group's options are gloo's, for its backend of the CPU."""
    from vccl import distributed
    from vccl._C import ProcessGroupVccl

    own = ProcessGroupVccl.Options()
    own._stands_for_gloo = True
    return distributed._create(options, own)


def install() -> None:
    """Puts this backend in the place of gloo for CUDA, in each group that is made from now on."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cuda"])
    original = c10d.BackendConfig.__init__

    @functools.wraps(original)
    def __init__(self: c10d.BackendConfig, backend: dist.Backend) -> None:
        original(self, backend)
        if self.device_backend_map.get("cuda") == dist.Backend.GLOO:
            self.device_backend_map["cuda"] = dist.Backend(NAME)

    c10d.BackendConfig.__init__ = __init__  # type: ignore[method-assign]
