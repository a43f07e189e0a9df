"""What goes wrong between ranks is told on every rank, in bounded time, naming both sides."""

import datetime
import itertools
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from common import everywhere, hear, tell

from vccl.testing import RankFailed

# Seconds. A death is noticed within five; a busy machine may take longer to tell, but not until the group's
# timeout.
PROMPTLY = 60


def finish(tensor: torch.Tensor, work: dist.Work | None) -> None:
    """Waits on the host until the collective has ended; raises what became of it."""
    if work is not None:
        work.wait()
    if tensor.device.type == "vdev":
        torch.accelerator.synchronize()


def raised_by(call) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return str(caught.value)


BOTH_SIDES = {
    "collective": ["all_reduce", "broadcast"],
    "count": ["16", "7"],
    "dtype": ["float32", "float64"],
    "op": ["SUM", "MAX"],
    "root": ["0", "1"],
}


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("what", BOTH_SIDES)
def test_mismatch_names_both_sides_on_every_rank(ranks, device, what, async_op):
    rank = ranks.rank
    x = torch.ones(16, device=device)

    def differently():
        # Healthy; but a slow rank may learn here already that the others have come to grief in the next.
        dist.all_reduce(x)
        if what == "collective":
            work = (
                dist.all_reduce(x, async_op=async_op)
                if rank == 0
                else dist.broadcast(x, 0, async_op=async_op)
            )
        elif what == "count":
            work = dist.all_reduce(x if rank == 0 else x[:7].clone(), async_op=async_op)
        elif what == "dtype":
            work = dist.all_reduce(x if rank == 0 else x.double(), async_op=async_op)
        elif what == "op":
            op = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
            work = dist.all_reduce(x, op, async_op=async_op)
        else:
            work = dist.broadcast(x, rank, async_op=async_op)
        finish(x, work)

    text = raised_by(differently)
    for side in BOTH_SIDES[what]:
        assert side in text
    assert "rank 0" in text and "rank 1" in text
    later = raised_by(lambda: finish(x, dist.all_reduce(x)))
    assert all(side in later for side in BOTH_SIDES[what]), "later calls name the first failure"


def described_at_length(rank, size):
    """The failure's record has 3,072 bytes, which end inside of a letter for one of the two descriptions."""
    texts = []
    for prefix in ("", "a"):
        group = dist.new_group(group_desc=prefix + "é" * 2000)
        x = torch.ones(16 if rank == 0 else 7, device="vdev")
        texts.append(raised_by(lambda x=x, group=group: finish(x, dist.all_reduce(x, group=group))))
    return texts


def test_a_text_is_cut_between_two_letters(rank_pool):
    first, second = rank_pool.run(2, described_at_length)
    for text in (*first, *second):
        assert "rank 0 called all_reduce(" in text and text.rstrip("é") != text
        assert "\ufffd" not in text
    assert first == second


def one_of_four_differs(rank, size, device):
    x = torch.ones(16, device=device)
    wrong = dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM

    def differently():
        dist.all_reduce(x)
        finish(x, dist.all_reduce(x, wrong, async_op=True))

    return raised_by(differently)


@everywhere
@pytest.mark.parametrize("hosts", [(), ("here", "here", "there", "there")], ids=["one_host", "two_hosts"])
def test_mismatch_reaches_every_rank(rank_pool, device, hosts):
    for text in rank_pool.run(4, one_of_four_differs, device, hosts=hosts):
        assert "MAX" in text and "SUM" in text and "rank 2" in text


def one_dies(rank, size, device, async_op):
    x = torch.ones(1 << 18, device=device)
    dist.barrier()
    began = time.monotonic()

    def go_on():
        for step in itertools.count():
            if rank == size - 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            finish(x, dist.all_reduce(x, async_op=async_op))

    text = raised_by(go_on)
    return text, time.monotonic() - began


@everywhere
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("size", [2, 4])
def test_killed_rank(rank_pool, size, device, async_op):
    for answer in rank_pool.run(size, one_dies, device, async_op, dying=[size - 1])[:-1]:
        text, seconds = answer
        assert f"rank {size - 1}" in text
        assert seconds < PROMPTLY


@everywhere
@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a", "b", "b")], ids=["2_hosts_of_1", "2_hosts_of_2"])
def test_killed_rank_on_another_host(rank_pool, device, hosts):
    """Noticed by the link's loss, and told to the ranks that have no link to it."""
    size = len(hosts)
    for answer in rank_pool.run(size, one_dies, device, True, hosts=hosts, dying=[size - 1])[:-1]:
        text, seconds = answer
        assert f"rank {size - 1}" in text
        assert seconds < PROMPTLY


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("made_before", [False, True], ids=["first_call", "later_call"])
def test_rank_that_never_comes(ranks, device, made_before):
    x = torch.ones(8, device=device)
    if made_before:
        dist.all_reduce(x)
        finish(x, None)
    dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=1500))
    if ranks.rank == 1:
        return hear("timed out")
    text = raised_by(lambda: finish(x, dist.all_reduce(x, async_op=True)))
    tell("timed out")
    assert "rank 1" in text
    assert "1500 ms" in text or "1.5 s" in text, text


@pytest.mark.ranks(2)
@everywhere
def test_timeout_of_one_call(ranks, device):
    x = torch.ones(8, device=device)
    dist.all_reduce(x)
    finish(x, None)
    if ranks.rank == 1:
        return hear("timed out")
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=300)
    text = raised_by(lambda: finish(x, dist.group.WORLD.allreduce([x], options)))
    tell("timed out")
    assert "300 ms" in text or "0.3 s" in text, text


@pytest.mark.ranks(2)
@everywhere
def test_timeout_of_wait_leaves_the_group_whole(ranks, device):
    x = torch.ones(8, device=device)
    dist.all_reduce(x)
    finish(x, None)
    if ranks.rank == 1:
        hear("gave up")
    work = dist.all_reduce(x, async_op=True)
    if ranks.rank == 0:
        assert "50 ms" in raised_by(lambda: work.wait(datetime.timedelta(milliseconds=50)))
        tell("gave up")
    work.wait()  # the collective itself went on
    assert x.eq(ranks.size * ranks.size).all().item()


@pytest.mark.ranks(2)
def test_set_timeout(ranks):
    dist.barrier()
    dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=400))
    if ranks.rank == 1:
        return hear("timed out")
    text = raised_by(dist.barrier)
    tell("timed out")
    assert "400 ms" in text or "0.4 s" in text, text


def aborted(rank, size, device, made_before):
    # Of fewer elements, what rank 0 sends before it aborts may be all that rank 1 needs.
    x = torch.ones(1000, device=device)
    backend = dist.group.WORLD._get_backend(torch.device(device))
    if made_before:
        dist.all_reduce(x)
        finish(x, None)
    if rank == 1:
        hear("aborted")
        # The abort reached us, too, where there was a way to us.
        return raised_by(lambda: finish(x, dist.all_reduce(x))) if made_before else None
    threading.Timer(0.3, backend.abort).start()
    text = raised_by(lambda: finish(x, dist.all_reduce(x, async_op=True)))
    assert backend.get_error().name == "COMM_ERROR"
    tell("aborted")
    return text


@everywhere
@pytest.mark.parametrize("hosts", [(), ("here", "there")], ids=["one_host", "two_hosts"])
@pytest.mark.parametrize("made_before", [False, True], ids=["while_connecting", "while_waiting"])
def test_abort_frees_waiters(rank_pool, device, made_before, hosts):
    for text in rank_pool.run(2, aborted, device, made_before, hosts=hosts):
        assert text is None or "abort" in text


@pytest.mark.ranks(2)
@everywhere
def test_peer_that_left(ranks, device):
    x = torch.ones(8, device=device)
    dist.all_reduce(x)
    finish(x, None)
    if ranks.rank == 1:
        dist.destroy_process_group()
    else:
        assert "rank 1" in raised_by(lambda: finish(x, dist.all_reduce(x)))


@pytest.mark.ranks(2)
@everywhere
def test_use_after_destroy(ranks, device):
    x = torch.ones(8, device=device)
    group = dist.group.WORLD
    backend = group._get_backend(torch.device(device))
    dist.all_reduce(x)
    dist.destroy_process_group()
    assert x.eq(ranks.size).all().item(), "what was launched before has run"
    assert "destroyed" in raised_by(lambda: backend.allreduce([x], dist.AllreduceOptions()))


@pytest.mark.ranks(2)
def test_skipped_collective_fails_its_group(ranks):
    """A collective that is skipped because its stream failed makes its group fail, not go out of step."""
    x = torch.ones(8, device="vdev")
    other = dist.new_group()
    dist.all_reduce(x)
    dist.all_reduce(x, group=other)
    torch.accelerator.synchronize()
    wrong = dist.ReduceOp.SUM if ranks.rank == 0 else dist.ReduceOp.MAX

    def both():
        dist.all_reduce(x, wrong)  # fails on the current stream
        dist.all_reduce(x, group=other)  # behind it, on the same stream
        torch.accelerator.synchronize()

    raised_by(both)
    raised_by(lambda: finish(x, dist.all_reduce(x, group=other)))


@pytest.mark.ranks(2, group=False)
@everywhere
def test_group_made_anew_after_a_failure(ranks, device):
    rank, size = ranks.rank, ranks.size
    for attempt in range(3):
        dist.init_process_group("vccl", store=ranks.store, rank=rank, world_size=size)
        x = torch.ones(8, device=device)
        raised_by(lambda x=x: finish(x, dist.all_reduce(x if rank else x.double())))
        dist.destroy_process_group()
        dist.init_process_group("vccl", store=ranks.store, rank=rank, world_size=size)
        x = torch.full((8,), float(attempt), device=device)
        dist.all_reduce(x)
        assert x.eq(attempt * size).all().item()
        dist.destroy_process_group()


def silent(rank, size):
    if rank == 1:
        time.sleep(3600)


def test_pool_itself_is_bounded(rank_pool):
    """A rank that does not answer fails the test and is replaced."""
    with pytest.raises(RankFailed, match="rank 1: no end in time"):
        rank_pool.run(2, silent, timeout=5)
    assert rank_pool.run(2, answer) == [0, 1]


def answer(rank, size):
    return rank


GROUPS_OF_THEIR_OWN = """
import datetime, torch, torch.distributed as dist
from vccl._C import ProcessGroupVccl
from vccl.distributed import make_group

def stay_away():
    time.sleep(4)

def group(name, number, size):
    options = ProcessGroupVccl.Options()
    options._timeout = datetime.timedelta(seconds=2)
    return make_group(dist.PrefixStore(name, store), number, size, options)

store, rank, size = next(dist.rendezvous("env://"))
if rank != 1:
    earlier = group("earlier", rank // 2, 2)
    earlier.allreduce([torch.ones(2)]).wait()
now = group("now", rank, size)
now.allreduce([torch.ones(2)]).wait()
if rank == 0:
    stay_away()
else:
    try:
        now.allreduce([torch.ones(2)]).wait()
    except RuntimeError as error:
        print(f"{rank}: {error}", flush=True)
    time.sleep(1)  # so that the other one, too, finds who is there
"""


def test_a_process_belongs_to_the_group_that_it_has_made_last_without_a_default_group(vrun, script):
    said = vrun("--cards", 3, script(GROUPS_OF_THEIR_OWN))
    assert "Rank 0 sleeps in stay_away" in said and "Ranks 1, 2 wait in all_reduce" in said
    assert "group unnamed" in said and "has no process here" not in said
