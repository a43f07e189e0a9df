"""The collectives that torch 2.13 renamed, under the names that they have since then."""

import torch.distributed as dist

from vccl._torch_version import renamed

all_gather_single = renamed(dist, "all_gather_single", "all_gather_into_tensor", ">=2.13")
reduce_scatter_single = renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor", ">=2.13")
