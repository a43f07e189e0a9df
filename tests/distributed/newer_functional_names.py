"""The functional collectives that torch 2.13 renamed, under the names that they have since then."""

from torch.distributed import _functional_collectives as functional

from vccl._torch_version import renamed

NEW = ">=2.13"
all_gather_single = renamed(functional, "all_gather_single", "all_gather_tensor", NEW)
all_gather_single_autograd = renamed(
    functional, "all_gather_single_autograd", "all_gather_tensor_autograd", NEW
)
all_gather_single_coalesced = renamed(
    functional, "all_gather_single_coalesced", "all_gather_into_tensor_coalesced", NEW
)
reduce_scatter_single = renamed(functional, "reduce_scatter_single", "reduce_scatter_tensor", NEW)
reduce_scatter_single_autograd = renamed(
    functional, "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd", NEW
)
reduce_scatter_single_coalesced = renamed(
    functional, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", NEW
)
