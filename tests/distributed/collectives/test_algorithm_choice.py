"""VCCL_ALGO through torch.distributed: what cannot be understood is said when a group is made."""

import os

import pytest
import torch
import torch.distributed as dist

BAD = "all_reduce:fastest"
WHY = 'VCCL_ALGO is "all_reduce:fastest", and at character 12: all_reduce has no algorithm "fastest"'

# In processes of its own: after a failed init_process_group() a rank gives the next default group another
# name than the others do.
MAKE_DEFAULT_GROUP = """
import datetime, os, sys
import torch.distributed as dist

rank = os.environ["RANK"]
if rank in sys.argv[1:]:
    os.environ["VCCL_ALGO"] = "all_reduce:fastest"
try:
    dist.init_process_group("vccl", timeout=datetime.timedelta(seconds=40))
    dist.barrier()
except Exception as error:
    print(f"[{rank}] {type(error).__name__}: {error}\\n", end="", flush=True)
"""


def make_default_group(vrun, tmp_path, *bad_ranks) -> list[str]:
    """What each of two ranks raises."""
    (tmp_path / "make.py").write_text(MAKE_DEFAULT_GROUP)
    lines = vrun("--cards", 2, "make.py", *bad_ranks, env={"VCCL_ALGO": None}).splitlines()
    return [next(line[4:] for line in lines if line.startswith(f"[{rank}] ")) for rank in range(2)]


def test_the_default_group_is_not_made(vrun, tmp_path):
    for rank, text in enumerate(make_default_group(vrun, tmp_path, 0, 1)):
        assert text.startswith(f"ValueError: rank {rank} could not join group default_pg: ")
        assert WHY in text and "An example: all_reduce:oneshot[0-4K]" in text


def test_nobody_waits_for_a_rank_that_is_alone_in_it(vrun, tmp_path):
    other, alone = make_default_group(vrun, tmp_path, 1)
    assert alone.startswith("ValueError: rank 1 could not join group default_pg: ") and WHY in alone
    assert other.removeprefix("DistBackendError: ") == alone.removeprefix("ValueError: ")


@pytest.mark.ranks(2)
def test_another_group_is_not_made():
    os.environ["VCCL_ALGO"] = BAD
    try:
        with pytest.raises(ValueError, match="no algorithm"):
            dist.new_group()
    finally:
        del os.environ["VCCL_ALGO"]
    # The groups that are there, and those that are made without it, do not mind.
    ones = torch.ones(3, device="vdev")
    dist.all_reduce(ones)
    dist.all_reduce(ones, group=dist.new_group())
    assert ones.tolist() == [4, 4, 4]


def gather_with_another_choice(rank: int, size: int) -> str:
    """What a rank raises if the hosts have chosen differently."""
    os.environ["VCCL_ALGO"] = "all_gather:ring" if rank < 2 else "all_gather:hierarchical"
    try:
        group = dist.new_group()
        ours, all_of_them = torch.ones(3, device="vdev"), torch.empty(3 * size, device="vdev")
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_gather_into_tensor(all_of_them, ours, group=group)
            torch.accelerator.synchronize()
        return str(caught.value)
    finally:
        del os.environ["VCCL_ALGO"]


def test_hosts_that_choose_differently_are_told_so(rank_pool):
    for text in rank_pool.run(4, gather_with_another_choice, hosts=["a", "a", "b", "b"]):
        assert "chose different algorithms for all_gather(float32, 3 elements)" in text
        assert "VCCL_ALGO must be the same on every rank" in text
