"""Tests that go wrong in each way that a test can: the driver has to notice. For test_driver.py."""

import os
import pathlib
import signal
import time
import unittest

import torch
import torch.distributed as dist


class Faulty:
    def _barrier(self, wait_for: int | None = None) -> None:
        dist.barrier()

    def test_passes_and_tells(self) -> None:
        total = torch.tensor([self.rank + 1])
        dist.all_reduce(total)
        assert total.item() == sum(range(1, dist.get_world_size() + 1))
        folder = pathlib.Path(os.environ["CONFORMANCE_WITNESSES"])
        (folder / f"rank-{self.rank}-of-{dist.get_world_size()}").write_text(str(os.getpid()))

    def test_fails_on_the_last_rank(self) -> None:
        self.assertNotEqual(self.rank, dist.get_world_size() - 1, "the failure that the driver has to report")

    @unittest.skip("the reason that the driver has to report")
    def test_is_skipped(self) -> None:
        raise AssertionError("was run")

    def test_is_skipped_by_the_ranks(self) -> None:
        raise unittest.SkipTest("seen by the ranks")

    def test_dies_on_the_last_rank(self) -> None:
        if self.rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        os._exit(0)

    def test_exits_early_on_the_last_rank(self) -> None:
        # With a status that upstream takes for a skip.
        os._exit(73 if self.rank == dist.get_world_size() - 1 else 0)

    def test_hangs_and_leaves_a_child(self) -> None:
        if os.fork() == 0:
            os.setsid()
            (pathlib.Path(os.environ["CONFORMANCE_WITNESSES"]) / f"child-{os.getpid()}").touch()
        while True:
            time.sleep(1)
