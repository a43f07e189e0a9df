"""Faults of a plan strike where the plan says, and the other ranks name who was struck."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from common import hear, sync, tell

from vccl import faults

everywhere = pytest.mark.parametrize("device", ["vdev", "cpu"])


def own(device: str, elements: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((elements,), value, device=device)


def reduced(device: str, elements: int = 100_000) -> float:
    x = own(device, elements)
    dist.all_reduce(x)
    assert (x == x[0]).all().item()
    return x[0].item()


# --- what ends a rank


def until_a_rank_ends(rank, size, plan, device, elements):
    done = 0
    with faults.plan(plan), pytest.raises(dist.DistBackendError) as caught:
        while done < 10:
            assert reduced(device, elements) == size, "a wrong number, and no error"
            done += 1
    return done, str(caught.value)


@pytest.mark.parametrize(
    "device, do", [("vdev", "kill"), ("cpu", "segv"), ("vdev", "abort"), ("cpu", "exit:3"), ("cpu", "kill")]
)
def test_a_rank_ends_before_an_all_reduce(rank_pool, do, device):
    plan = f"rank=1,op=all_reduce,n=3,do={do}"
    done, text = rank_pool.run(2, until_a_rank_ends, plan, device, 1000, dying=[1])[0]
    assert done == 2 and "rank 1" in text, text


@pytest.mark.parametrize(
    "device, at, elements",
    [
        ("vdev", "during", 4),
        ("cpu", "during", 100_000),
        ("vdev", "during", 3_000_000),
        ("cpu", "after", 4),
        ("vdev", "after", 100_000),
    ],
)
def test_a_rank_is_killed_in_the_midst_or_after(rank_pool, device, at, elements):
    """Who has got everything from the dead rank may end the operation, and raises in the next one."""
    plan = f"rank=2,op=all_reduce,n=2,at={at},do=kill"
    for outcome in rank_pool.run(3, until_a_rank_ends, plan, device, elements, dying=[2])[:2]:
        done, text = outcome
        assert done in ((1, 2) if at == "during" else (2,)) and "rank 2" in text, outcome


def test_some_blocks_have_moved_and_others_have_not(rank_pool):
    """A rank that dies at its first block leaves its peers with a part of the result."""
    found = rank_pool.run(2, partly_done, dying=[1], env={"VCCL_ALGO": "all_reduce:ring"})[0]
    assert 1.0 in found and 2.0 in found


def partly_done(rank, size):
    x = own("cpu", 4_000_000)
    with (
        faults.plan("rank=1,op=all_reduce,at=during,do=kill"),
        pytest.raises(dist.DistBackendError, match="rank 1"),
    ):
        dist.all_reduce(x)
    return x.unique().tolist()


def messages(rank, size, plan, device):
    x = own(device, 100_000, float(rank))
    with faults.plan(plan), pytest.raises(dist.DistBackendError) as caught:
        for _ in range(10):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
            sync(device)
            assert x[0].item() == 0.0, "a wrong number, and no error"
    return str(caught.value)


@pytest.mark.parametrize(
    "device, victim, op, at",
    [
        ("vdev", 0, "send", "before"),
        ("cpu", 0, "send", "during"),
        ("vdev", 0, "send", "after"),
        ("cpu", 1, "recv", "before"),
        ("vdev", 1, "recv", "during"),
        ("cpu", 1, "recv", "after"),
    ],
)
def test_a_rank_is_killed_at_a_message(rank_pool, device, victim, op, at):
    texts = rank_pool.run(2, messages, f"rank={victim},op={op},n=3,at={at},do=kill", device, dying=[victim])
    assert f"rank {victim}" in texts[1 - victim]


def in_a_batch(rank, size):
    xs = [own("cpu", 10) for _ in range(3)]
    with faults.plan("rank=1,op=broadcast,do=kill"), pytest.raises(dist.DistBackendError) as caught:
        for _ in range(2):
            with dist._coalescing_manager():
                for x in xs:
                    dist.all_reduce(x)
            for x in xs:
                dist.broadcast(x, 1)
            sync("cpu")
    return str(caught.value)


def test_a_rule_names_one_operation_of_many(rank_pool):
    assert "rank 1" in rank_pool.run(2, in_a_batch, dying=[1])[0]


# --- what a rank survives


def late(rank, size, plan, device):
    reduced(device)
    begin = time.monotonic()
    before = len(faults.struck())
    with faults.plan(plan):
        for _ in range(3):
            assert reduced(device) == size
    return time.monotonic() - begin, [(each.kind, each.at, each.place) for each in faults.struck()[before:]]


@everywhere
@pytest.mark.parametrize("at", ["before", "during", "after"])
@pytest.mark.parametrize("kind", ["stall", "stop"])
def test_a_rank_goes_on_after_its_time(rank_pool, device, at, kind):
    outcomes = rank_pool.run(2, late, f"rank=1,op=all_reduce,n=2,at={at},do={kind}:0.1", device)
    assert outcomes[1][0] >= 0.1
    assert [struck for _, struck in outcomes] == [[], [(kind, at, "all_reduce")]]


def slowed(rank, size):
    """Rank 0 waits in the operation for rank 1, for 0.3 s, and so takes four times as long."""
    before = len(faults.struck())
    reduced("cpu")
    with faults.plan("rank=0,op=all_reduce,do=slow:4"):
        if rank == 1:
            hear("begun")
            time.sleep(0.3)
        else:
            tell("begun")
        begin = time.monotonic()
        reduced("cpu")
        took = time.monotonic() - begin
        reduced("cpu")
    return took, len(faults.struck()) - before


def test_a_slow_rank_takes_several_times_as_long(rank_pool):
    (took, struck), (_, none) = rank_pool.run(2, slowed)
    assert took > 0.6 and none == 0
    assert struck == 1, "one line for a rule, and not one for each operation"


def raising(rank, size):
    x = own("vdev", 10)
    with faults.plan("rank=1,op=all_reduce,n=2,do=raise:torch.distributed.DistNetworkError"):
        dist.all_reduce(x)
        if rank == 1:
            with pytest.raises(
                dist.DistNetworkError, match="struck rank 1 at all_reduce of group default_pg"
            ):
                dist.all_reduce(x)
        # The call was never made, so a rank that calls again is no stranger to the others.
        dist.all_reduce(x)
    assert x[0].item() == 4.0


def test_a_call_raises(rank_pool):
    rank_pool.run(2, raising)


# --- wrong numbers


def damaged(rank, size, plan, device, call):
    x = own(device, 1000, 1.0)
    out = torch.zeros(1000 * size, device=device)
    with faults.plan(plan):
        if call == "all_reduce":
            dist.all_reduce(x)
            found = x
        else:
            dist.all_gather_into_tensor(out, x)
            found = out
            assert (x == 1).all().item(), "a rank's own input is what it was"
        sync(device)
    right = float(size) if call == "all_reduce" else 1.0
    return (found != right).nonzero().flatten().tolist(), found.isnan().sum().item()


@everywhere
@pytest.mark.parametrize("do", ["corrupt:1", "nan"])
@pytest.mark.parametrize("call", ["all_reduce", "all_gather"])
def test_what_a_rank_contributes_is_damaged_for_all(rank_pool, device, do, call):
    here, there = rank_pool.run(2, damaged, f"rank=1,op={call},do={do}", device, call)
    assert here == there and len(here[0]) == 1
    assert (here[1] == 1) or do != "nan"


@everywhere
@pytest.mark.parametrize("do", ["corrupt:3", "nan"])
def test_what_a_rank_receives_is_damaged_for_it_alone(rank_pool, device, do):
    (wrong, _), (wrong_there, _) = rank_pool.run(2, damaged, f"rank=1,at=after,do={do}", device, "all_reduce")
    assert wrong == [] and 1 <= len(wrong_there) <= 3


def sent(rank, size, plan):
    x = own("vdev", 100, float(rank == 0))
    with faults.plan(plan):
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        sync("vdev")
    return (x != 1).sum().item()


@pytest.mark.parametrize("plan", ["rank=0,op=send,do=nan", "rank=1,op=recv,at=after,do=nan"])
def test_a_message_is_damaged_and_its_sender_is_not(rank_pool, plan):
    assert rank_pool.run(2, sent, plan) == [0, 1]


def multiplied(rank, size):
    a = torch.ones(8, 8, device="vdev")
    before = len(faults.struck())
    with faults.plan("rank=1,do=sdc,n=2"):
        products = [(a @ a).cpu() for _ in range(3)]
    assert [each.place for each in faults.struck()[before:]] == ["matmul"] * rank
    return [(product != 8).sum().item() for product in products]


def test_one_element_of_a_product_is_wrong(rank_pool):
    assert rank_pool.run(2, multiplied) == [[0, 0, 0], [0, 1, 0]]


def short_of_memory(rank, size):
    x = own("vdev", 10)
    with faults.plan("rank=1,op=all_reduce,n=2,do=oom"):
        dist.all_reduce(x)
        y = x + 1
        dist.all_reduce(x)
        if rank == 1:
            with pytest.raises(
                torch.OutOfMemoryError, match=r"fault of the plan asked for this error \(oom\)"
            ):
                y = torch.empty(1 << 20, device="vdev")
        y = torch.empty(1 << 20, device="vdev")
    return y.numel(), x[0].item()


def test_the_next_allocation_fails(rank_pool):
    assert rank_pool.run(2, short_of_memory) == [(1 << 20, 4.0)] * 2


# --- phases


def made_groups(rank, size, plan):
    with faults.plan(plan), pytest.raises(dist.DistBackendError) as caught:
        group = dist.new_group([0, 1])
        dist.all_reduce(own("vdev", 10), group=group)
        sync("vdev")
        dist.destroy_process_group(group)
        for _ in range(2):
            dist.all_reduce(own("cpu", 10))
    return str(caught.value)


@pytest.mark.parametrize(
    "where",
    [
        "phase=new_group",
        "phase=new_group,at=after",
        "phase=first_use",
        "phase=destroy",
        "phase=destroy,at=after",
    ],
)
def test_a_rank_is_killed_in_a_phase(rank_pool, where):
    assert "rank 1" in rank_pool.run(2, made_groups, f"rank=1,{where},do=kill", dying=[1])[0]


def checkpointed(rank, size):
    order = []
    with faults.plan("phase=checkpoint,n=2,do=raise:KeyError;phase=checkpoint,n=1,at=after,do=stall:0.01"):
        with faults.phase("checkpoint"):
            order.append("first")
        with pytest.raises(KeyError, match="at checkpoint"), faults.phase("checkpoint"):
            order.append("second")
    with pytest.raises(ValueError, match="'checkpoint' alone"), faults.phase("init"):
        pass
    return order


def test_the_phase_that_a_program_names(rank_pool):
    assert rank_pool.run(1, checkpointed) == [["first"]]


def stepped(rank, size):
    before = len(faults.struck())
    faults.step(0)
    with faults.plan("rank=0,op=all_reduce,step=2+4-5,do=stall:0.001"):
        for _ in range(7):
            dist.all_reduce(own("cpu", 4))
            faults.step()
    assert faults.step() == 8
    return [each.step for each in faults.struck()[before:]]


def test_a_rule_for_some_steps(rank_pool):
    assert rank_pool.run(2, stepped) == [[2, 4, 5], []]


# --- chance


def drawn(rank, size):
    before = len(faults.struck())
    with faults.plan("rank=*,op=all_reduce,p=0.3,do=stall:0.0001;seed=11"):
        for _ in range(60):
            dist.all_reduce(own("cpu", 4))
    return [each.sequence - before for each in faults.struck()[before:]]


def test_a_seed_gives_the_same_faults_for_any_number_of_ranks(rank_pool):
    two, three = (rank_pool.run(size, drawn, env={"OMP_NUM_THREADS": "1"}) for size in (2, 3))
    relative = [[number - numbers[0] for number in numbers] for numbers in (*two, *three)]
    assert relative[:2] == relative[2:4]
    assert relative[0] != relative[1] and 5 < len(relative[0]) < 40


# --- the mark


@pytest.mark.ranks(2)
@pytest.mark.faults("rank=1,op=all_reduce,n=2,do=raise:ArithmeticError")
def test_the_mark_switches_a_plan_on(ranks):
    dist.all_reduce(own("cpu", 4))
    if ranks.rank == 1:
        with pytest.raises(ArithmeticError):
            dist.all_reduce(own("cpu", 4))
        tell("raised")
    else:
        hear("raised")


@pytest.mark.faults("op=barrier,do=abort")
def test_the_mark_concerns_tests_without_ranks_too():
    from vccl import _C

    mine = _C._switch_faults_on(None)
    _C._switch_faults_on(mine)
    assert mine is not None


# --- a host


def lost(rank, size):
    done = 0
    with faults.plan("rank=3,op=all_reduce,n=2,do=lose-host"), pytest.raises(dist.DistBackendError) as caught:
        while done < 10:
            reduced("cpu", 10)
            done += 1
    return done, str(caught.value), os.getpid()


def test_a_host_is_lost_with_all_of_its_ranks(rank_pool):
    outcomes = rank_pool.run(4, lost, hosts=("a", "a", "b", "b"), dying=[2, 3])
    for done, text, _ in outcomes[:2]:
        assert done == 1 and ("rank 2" in text or "rank 3" in text)
    assert outcomes[2:] == [None, None]
