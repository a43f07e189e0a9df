"""A part of PyTorch's own suite on ranks of the pool: its base class is the stand-in of vccl.testing."""

import os
import tempfile
from unittest import mock

# The suite asks about cards when it is loaded. These are read once in a process, and tests/device needs them.
os.environ.setdefault("VDEV_MEMORY", "2G")
os.environ.setdefault("VDEV_DEVICE_COUNT", "8")

import expected
import suite
from torch.testing._internal import common_distributed

from vccl.testing.torch_cases import MultiProcessTestCase

RANKS = 3
# Over tensors on the CPU.
TESTS = [
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_max",
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_all_to_all",
    "test_all_to_all_single_unequal_split",
    "test_barrier",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast",
    "test_ddp_create_graph",
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_gather",
    "test_get_rank",
    "test_get_future",
    "test_irecv",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo",
    "test_reduce_product",
    "test_scatter",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
]


def load():
    """The suite's module, and what it has set in the environment."""
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(common_distributed, "MultiProcessTestCase", MultiProcessTestCase),
    ):
        before = dict(os.environ)
        module = suite.load("vccl", "cpu", RANKS, f"file://{tempfile.gettempdir()}/unused")
        return module, {name: value for name, value in os.environ.items() if before.get(name) != value}


MODULE, VARIABLES = load()


class TestDistributed(MODULE.TestDistBackend, MODULE.DistributedTest._DistTestBase):
    """The tests of TESTS."""

    def setUp(self) -> None:
        variables = mock.patch.dict(os.environ, VARIABLES)
        variables.start()
        self.addCleanup(variables.stop)
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **options) -> None:
        MODULE.INIT_METHOD = f"file://{file_name}"
        super()._run(rank, test_name, file_name, pipe, **options)


# Upstream asks for test_ddp_has_finalized in setUp. Without GPUs it is skipped.
for name in {name for name in dir(TestDistributed) if name.startswith("test_")} - {
    *TESTS,
    "test_ddp_has_finalized",
}:
    setattr(TestDistributed, name, None)


def test_all_of_them_pass_in_the_whole_run() -> None:
    """`make conformance` runs them in ranks of their own, and its list has none of them."""
    entries = [entry for entry in expected.read() if "cpu" in entry.devices and RANKS in entry.worlds]
    assert not {test for entry in entries for test in entry.tests} & set(TESTS)
