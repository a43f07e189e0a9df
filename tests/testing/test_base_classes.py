"""The stand-ins for the base classes of PyTorch's and DeepSpeed's own distributed tests."""

SOURCE = """
import os, unittest
import pytest, torch
import torch.distributed as dist
from vccl.testing.deepspeed_cases import DistributedTest
from vccl.testing.torch_cases import MultiProcContinuousTest, MultiProcessTestCase

class TestOneByOne(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def init(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("vccl", store=store, rank=self.rank, world_size=self.world_size)

    def test_sum(self):
        self.init()
        x = torch.ones(3, device="vdev")
        dist.all_reduce(x)
        self.assertEqual(x.cpu(), torch.full((3,), 3.0))

    def test_fails(self):
        self.init()
        if self.rank == 1:
            self.assertEqual(1, 2)
        dist.barrier()

    def test_skips(self): raise unittest.SkipTest("a reason")

    def test_dies(self):
        if self.rank == 2: os.kill(os.getpid(), 9)

class TestContinuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls): return "vccl"

    def test_sum_of_continuous(self):
        x = torch.ones(3, device=f"vdev:{self.rank}")
        dist.all_reduce(x)
        self.assertEqual(x.cpu(), torch.full((3,), 2.0))

    def test_one_fails(self):
        if self.rank == 0: raise ValueError("of rank 0")
        dist.barrier()

    def test_skips_too(self): self.skipTest("a reason")

    def test_that_comes_later(self): dist.barrier()

class TestOfDeepSpeed(DistributedTest):
    world_size = [2, 4]
    init_distributed = False

    @pytest.mark.parametrize("number", [1, 2])
    def test_sizes(self, number, tmpdir, ranks):
        assert dist.get_world_size() == ranks.size
        tmpdir.join(str(ranks.rank)).write("")
        dist.barrier()
        assert len(tmpdir.listdir()) == ranks.size

    @pytest.mark.world_size(3)
    def test_own_size(self): assert dist.get_world_size() == 3

class TestWithoutGroup(DistributedTest):
    set_dist_env = False
    def test_no_group(self): assert not dist.is_initialized()
"""
EXPECTED = {
    "test_sum": "passed",
    "test_fails": "failed",
    "test_skips": "skipped",
    "test_dies": "failed",
    "test_sum_of_continuous": "passed",
    "test_one_fails": "failed",
    "test_skips_too": "skipped",
    "test_that_comes_later": "passed",
    "test_sizes[2_ranks-1]": "passed",
    "test_sizes[2_ranks-2]": "passed",
    "test_sizes[4_ranks-1]": "passed",
    "test_sizes[4_ranks-2]": "passed",
    "test_own_size": "passed",
    "test_no_group": "passed",
}


def test_outcomes(inner_pytest):
    done = inner_pytest(SOURCE, status=1)
    assert done.outcomes == EXPECTED, done.output
    assert "rank 1: failed, the first" in done.told("TestOneByOne.test_fails")
    assert "Expected 2 but got 1." in done.told("TestOneByOne.test_fails")
    assert "killed by SIGKILL" in done.told("TestOneByOne.test_dies")
    assert "of rank 0" in done.told("TestContinuous.test_one_fails")
    assert "RanksWarning" not in done.output, done.output
