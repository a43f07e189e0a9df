"""Faults of a plan strike links between hosts. The numbers stay right, or every rank gets an error that names
the link.
"""

import pytest
import torch
import torch.distributed as dist
from common import sync

from vccl import faults

HOSTS = ("a", "a", "b")  # of the three ranks
PATIENT = {"VCCL_LINK_TIMEOUT": "60"}  # the machine may be slow
# A link is lost after so many seconds. On a slow machine, ranks may be silent for a part of them.
QUICK = {"VCCL_LINK_TIMEOUT": "6"}
everywhere = pytest.mark.parametrize("device", ["vdev", "cpu"])


def exchange(rank: int, size: int, device: str, step: int) -> None:
    """Sums long and short tensors and passes a message around, and checks every number."""
    for elements in (4, 700_000):
        x = torch.full((elements,), float(rank + step), device=device)
        dist.all_reduce(x)
        assert (x == size * step + size * (size - 1) / 2).all().item()
    sent = torch.full((100_000,), float(rank * 100 + step), device=device)
    received = torch.zeros_like(sent)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]
    ):
        work.wait()
    sync(device)
    assert (received == (rank - 1) % size * 100 + step).all().item()


def survive(rank, size, plan, device):
    exchange(rank, size, device, 0)
    before = len(faults.struck())
    with faults.plan(plan):
        for step in range(1, 5):
            faults.step(step)
            exchange(rank, size, device, step)
        dist.barrier()  # whoever is done first would heal a link that others still use
    exchange(rank, size, device, 9)
    return [(each.kind, each.at, each.place) for each in faults.struck()[before:]]


@everywhere
@pytest.mark.parametrize(
    "place, do, expected",
    [
        ("rank=2,op=all_reduce,n=3,at=before", "reset-link", ("before", "all_reduce")),
        ("rank=0,op=all_reduce,n=4,at=during", "reset-link", ("during", "all_reduce")),
        ("rank=2,op=send,n=2,at=during", "reset-link", ("during", "send")),
        ("rank=2,op=all_reduce,n=3,at=after", "cut-link:0.4", ("after", "all_reduce")),
        ("rank=1,op=all_reduce,n=2,at=before", "delay-link:15", ("before", "all_reduce")),
        ("rank=2,op=recv,n=1,at=before", "loss-link:0.1", ("before", "recv")),
    ],
)
def test_the_numbers_stay_right(rank_pool, device, place, do, expected):
    struck = rank_pool.run(3, survive, f"{place},do={do}; seed=5", device, hosts=HOSTS, env=PATIENT)
    victim = int(place[len("rank=")])
    kind = do.partition(":")[0]
    assert struck == [[(kind, *expected)] if rank == victim else [] for rank in range(3)]


def test_links_are_reset_again_and_again(rank_pool):
    plan = "op=all_reduce,p=0.5,at=during,do=reset-link; seed=3"
    struck = rank_pool.run(3, survive, plan, "cpu", hosts=HOSTS, env=PATIENT)
    assert all({kind for kind, *_ in each} == {"reset-link"} for each in struck), struck


def fail(rank, size, plan, device):
    exchange(rank, size, device, 0)
    with faults.plan(plan), pytest.raises(dist.DistBackendError) as caught:
        for step in range(1, 1000):
            exchange(rank, size, device, step)
    return str(caught.value)


@pytest.mark.parametrize(("at", "device"), [("before", "vdev"), ("during", "cpu"), ("after", "vdev")])
@pytest.mark.parametrize("do", ["drop-link", "cut-link:1000"])
def test_every_rank_names_who_is_cut_off(rank_pool, device, at, do):
    """Rank 2 is alone on its host. So the link that fails is one of rank 2."""
    plan = f"rank=2,op=all_reduce,n=3,at={at},do={do}"
    texts = rank_pool.run(3, fail, plan, device, hosts=HOSTS, env=QUICK, group_timeout=600)
    for text in texts:
        assert "rank 2" in text and ("connection of rank" in text or "could not connect" in text), texts


def without_links(rank, size, kinds):
    before = len(faults.struck())
    for kind in kinds:
        with faults.plan(f"rank=1,op=all_reduce,do={kind}"):
            exchange(rank, size, "cpu", 1)
    from vccl.faults import plans

    return faults.struck()[before:], {each.why_not for each in plans.due() if each.why_not}


def test_on_one_host_there_is_nothing_to_strike(rank_pool):
    kinds = ("reset-link", "cut-link:9", "drop-link", "delay-link:9", "loss-link:0.5")
    rank_pool.renew()  # ranks that had links before may keep one for a moment
    (struck_0, why_0), (struck_1, why_1) = rank_pool.run(2, without_links, kinds)
    assert struck_0 == struck_1 == [] and why_0 == set()
    assert why_1 == {"this process has no link to another host"}
