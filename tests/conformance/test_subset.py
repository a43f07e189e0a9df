"""A part of PyTorch's own suite, small enough for every run of the tests; `make conformance` runs all.

test_base_class.py has another part, over tensors on the CPU.
"""

import pathlib

import pytest
import run

# Over tensors on cards.
VDEV = [
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_gather_v_cuda",
    "test_all_reduce_sum_cuda",
    "test_all_to_all_cuda",
    "test_all_to_all_single_unequal_split_cuda",
    "test_batch_isend_irecv_nccl",
    "test_broadcast_cuda",
    "test_coalescing_manager_async",
    "test_ddp_apply_optim_in_backward",
    "test_ddp_device_mesh_initialization",
    "test_ddp_join_model_equivalence",
    "test_ddp_logging_data_gpu",
    "test_DistributedDataParallel_SyncBatchNorm",
    "test_gather_cuda",
    "test_new_subgroups_by_enumeration",
    "test_reduce_scatter_tensor_cuda",
    "test_reduce_scatter_v_cuda",
    "test_reduce_sum_cuda",
    "test_scatter_cuda",
    "test_send_recv_nccl_autograd_profiler",
    "test_sparse_all_reduce_sum_cuda",
    "test_stateless_api_with_ddp",
]


# Over tensors on cards that pose as CUDA. Upstream has a sparse all_reduce for gloo only.
CUDA = [test for test in VDEV if test != "test_sparse_all_reduce_sum_cuda"]


@pytest.mark.daily
@pytest.mark.parametrize(("device", "world", "tests"), [("vdev", 4, VDEV), ("cuda", 4, CUDA)])
def test_upstream_passes(device: str, world: int, tests: list[str], tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    failures = [
        f"{result['test']} {result['outcome']} on {device} with {world} ranks:\n{result['text']}"
        for result in run.results("vccl", device, world, tests, log)
        if result["outcome"] != "passed"
    ]
    assert not failures, "\n".join([*failures, log.read_text()[-5000:]])
