"""Errors in a subgroup name ranks by their numbers in the job, and in the group where they differ."""

import datetime
import re

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, default_store

TWO, THREE = "rank 2 (0 of mesh_tp, ranks 2, 3)", "rank 3 (1 of mesh_tp, ranks 2, 3)"


def fails(call) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        call()
        torch.accelerator.synchronize()
    return str(caught.value)


def different_calls(rank, group, device):
    x = torch.ones(4, device=device)
    if rank == 2:
        return fails(lambda: dist.all_reduce(x, group=group))
    return fails(lambda: dist.broadcast(x, src=3, group=group))


def different_splits(rank, group, device):
    x, y = torch.ones(4, device=device), torch.ones(4, device=device)
    splits = ([1, 3], [1, 3]) if rank == 2 else ([2, 2], [2, 2])
    return fails(lambda: dist.all_to_all_single(y, x, *splits, group=group))


def different_messages(rank, group, device):
    if rank == 2:
        dist.send(torch.ones(4, device=device), dst=3, group=group)
        return ""
    return fails(lambda: dist.recv(torch.ones(5, device=device), src=2, group=group))


def late(rank, group, device):
    if rank == 3:
        default_store().wait(["rank 2 has given up"], PATIENCE)
        return ""
    group._get_backend(torch.device(device)).options._timeout = datetime.timedelta(seconds=1)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(milliseconds=500), group)
    text = fails(lambda: dist.all_reduce(torch.ones(4, device=device), group=group))
    default_store().set("rank 2 has given up", "")
    return text


def absent_from_a_monitored_barrier(rank, group, device):
    if rank == 3:
        default_store().wait(["rank 2 is through"], PATIENCE)
        return ""
    text = fails(lambda: dist.monitored_barrier(group, timeout=datetime.timedelta(milliseconds=500)))
    default_store().set("rank 2 is through", "")
    return text


def in_subgroup(rank, size, case, device):
    group = dist.new_group([2, 3], group_desc="mesh_tp")
    if rank < 2:
        return ""
    dist.all_reduce(torch.ones(4, device=device), group=group)
    return case(rank, group, device)


EXPECTED = {
    different_calls: [f"{TWO} called all_reduce(", f"but {THREE} called broadcast(", "root 3 (1 of mesh_tp)"],
    different_splits: [f"{TWO} sends 3 elements to {THREE}, which expects 2"],
    different_messages: [f"{TWO} sent message(float32, 4 elements)", f"but {THREE} received"],
    late: [f"{TWO} waited 500 ms for rank 3 (1 of mesh_tp)", f"{THREE} waits in no collective and for no"],
    absent_from_a_monitored_barrier: [
        "Rank 3 (1 of mesh_tp) failed to pass",
        "according to rank 2 (0 of mesh_tp)",
    ],
}


@pytest.mark.parametrize("device", ["vdev", "cpu"])
@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_texts_have_both_numbers(rank_pool, case, device):
    texts = [text for text in rank_pool.run(4, in_subgroup, case, device) if text]
    assert texts
    for text in texts:
        for part in EXPECTED[case]:
            assert part in text
        # No number of the group stands alone.
        assert not re.search(r"\branks? [01]\b", text)
