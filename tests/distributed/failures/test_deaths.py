"""A rank that dies, or cannot join, is named by all others at once, in whatever phase they are.

The groups' timeouts are far longer than the tests may take.
"""

import datetime
import os
import re
import signal
import time

import pytest
import torch
import torch.distributed as dist
from common import default_store

import vccl
from vccl._C import ProcessGroupVccl

LONG = 1800.0  # the groups' timeout in seconds
PROMPTLY = 30.0  # what the survivors may take: five seconds, on a machine that does other things as well

one_or_two_hosts = pytest.mark.parametrize(
    "hosts", [("a", "a", "a"), ("a", "b", "b"), ("a", "b", "a")], ids=["1_host", "1_and_2", "2_and_1"]
)


def failure(call) -> str:
    """The text of the error that the call raises, promptly."""
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    assert time.monotonic() - began < PROMPTLY
    return str(caught.value)


def die_together(victim: int) -> None:
    """Returns on the other ranks, when all are through what they did before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    default_store().set(f"through: {rank}", "")
    default_store().wait([f"through: {other}" for other in range(size)], datetime.timedelta(seconds=60))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)


def on_a_card() -> None:
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x)
    torch.accelerator.synchronize()


def first_card_collective(rank, size, victim):
    dist.all_reduce(torch.ones(4))
    die_together(victim)
    return failure(on_a_card)


@one_or_two_hosts
@pytest.mark.parametrize("victim", [0, 1])
def test_death_before_the_first_card_collective(rank_pool, victim, hosts):
    texts = rank_pool.run(
        3, first_card_collective, victim, hosts=hosts, dying=[victim], group_timeout=LONG, timeout=60
    )
    for rank, text in enumerate(texts):
        assert rank == victim or (f"rank {victim} (pid " in text and "default_pg" in text), text


def card_collective_of_a_new_group(rank, size, victim):
    group = dist.new_group(group_desc="the_new_one")
    die_together(victim)
    x = torch.ones(4, device="vdev")

    def reduce():
        dist.all_reduce(x, group=group)
        torch.accelerator.synchronize()

    return failure(reduce)


@one_or_two_hosts
@pytest.mark.parametrize("victim", [0, 2])
def test_death_before_the_first_card_collective_of_a_new_group(rank_pool, victim, hosts):
    texts = rank_pool.run(
        3, card_collective_of_a_new_group, victim, hosts=hosts, dying=[victim], group_timeout=LONG, timeout=60
    )
    for rank, text in enumerate(texts):
        assert rank == victim or (f"rank {victim} (pid " in text and "the_new_one" in text), text


def new_group_of_others(rank, size, victim):
    die_together(victim)
    if rank == 0:
        assert dist.new_group([1, 2]) is dist.GroupMember.NON_GROUP_MEMBER
        return None
    return failure(lambda: dist.new_group([1, 2]))


@one_or_two_hosts
@pytest.mark.parametrize("victim", [1, 2])
def test_new_group_with_a_dead_member(rank_pool, victim, hosts):
    texts = rank_pool.run(
        3, new_group_of_others, victim, hosts=hosts, dying=[victim], group_timeout=LONG, timeout=60
    )
    survivor = 3 - victim
    assert f"rank {victim} ({victim - 1} of group 1, ranks 1, 2; pid " in texts[survivor], texts


def new_group_of_who_left(rank, size, victim):
    """The victim leaves the default group properly, and ends where the others make the next group."""
    die_together(-1)
    if rank == victim:
        dist.destroy_process_group()
        os._exit(0)
    return failure(lambda: dist.new_group([0, 1]))


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b")], ids=["1_host", "2_hosts"])
@pytest.mark.parametrize("victim", [0, 1])
def test_new_group_with_a_member_that_left_and_ended(rank_pool, victim, hosts):
    texts = rank_pool.run(
        2, new_group_of_who_left, victim, hosts=hosts, dying=[victim], group_timeout=LONG, timeout=60
    )
    assert f"rank {victim} (pid " in texts[1 - victim], texts


def new_group_of_survivors(rank, size):
    die_together(1)
    group = dist.new_group([0, 2])
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x, group=group)
    return x.tolist()


@one_or_two_hosts
def test_new_group_without_the_dead(rank_pool, hosts):
    first, _, third = rank_pool.run(
        3, new_group_of_survivors, hosts=hosts, dying=[1], group_timeout=LONG, timeout=60
    )
    assert first == third == [2.0] * 4


def barrier_with_the_dead(rank, size, victim):
    die_together(victim)
    return failure(vccl.monitored_barrier)


@one_or_two_hosts
@pytest.mark.parametrize("victim", [0, 1])
def test_monitored_barrier_with_a_dead_rank(rank_pool, victim, hosts):
    texts = rank_pool.run(
        3, barrier_with_the_dead, victim, hosts=hosts, dying=[victim], group_timeout=LONG, timeout=60
    )
    survivors = [text for rank, text in enumerate(texts) if rank != victim]
    assert survivors[0] == survivors[1]
    assert survivors[0].startswith(f"Rank {victim} failed to pass monitoredBarrier: ")
    assert f"rank {victim} (pid " in survivors[0] and "group default_pg of 3 ranks" in survivors[0]


def killed_in_the_meeting(rank, size, shared):
    """Rank 0 dies while it waits for rank 2, which never comes."""
    if rank == 2:
        return None
    if rank == 0:
        signal.alarm(3)
    options = vccl.Options()
    options._timeout = datetime.timedelta(seconds=LONG)
    return failure(lambda: ProcessGroupVccl(shared, rank, size, options))


def test_rank_0_dies_in_the_first_meeting(rank_pool):
    _, text, _ = rank_pool.run(3, killed_in_the_meeting, group=False, dying=[0], timeout=60)
    assert text.startswith("rank 0 (pid ") and "died while group unnamed was put together" in text


def refused(rank, size, culprit, variables):
    if rank == culprit:
        os.environ.update(variables)
    try:
        began = time.monotonic()
        with pytest.raises((dist.DistBackendError, ValueError)) as caught:
            dist.new_group(timeout=datetime.timedelta(seconds=LONG))
        assert time.monotonic() - began < PROMPTLY
    finally:
        for name in variables if rank == culprit else ():
            del os.environ[name]
    return type(caught.value).__name__, str(caught.value)


REFUSALS = {
    "interface": ({"VCCL_SOCKET_IFNAME": "nosuchcard"}, "matches no network interface", "DistBackendError"),
    "algorithm": ({"VCCL_ALGO": "all_reduce:fastest"}, "VCCL_ALGO is", "ValueError"),
    "security": ({"VCCL_LINK_SECURITY": "some"}, "VCCL_LINK_SECURITY is", "ValueError"),
    "ports": ({"VCCL_PORT_RANGE": "9-8"}, "VCCL_PORT_RANGE is", "ValueError"),
    "silence": ({"VCCL_LINK_TIMEOUT": "0"}, "VCCL_LINK_TIMEOUT is", "ValueError"),
    "warnings": ({"VCCL_WARN_AFTER": "soon"}, "VCCL_WARN_AFTER is", "ValueError"),
    "checks": ({"VCCL_CHECK": "nothing"}, "VCCL_CHECK is", "ValueError"),
    "debug": ({"VCCL_DEBUG": "LOUD"}, "VCCL_DEBUG is", "ValueError"),
    "recorder": ({"VCCL_RECORDER_SIZE": "many"}, "VCCL_RECORDER_SIZE is", "ValueError"),
    "torch's recorder": ({"TORCH_FR_BUFFER_SIZE": "-1"}, "TORCH_FR_BUFFER_SIZE is", "ValueError"),
    "record": ({"VCCL_RECORD": ",hash"}, "VCCL_RECORD is", "ValueError"),
    "stacks": ({"VCCL_RECORD_STACKS": "yes"}, "VCCL_RECORD_STACKS is", "ValueError"),
    "watchers": ({"VCCL_RAS_ADDR": "localhost"}, "VCCL_RAS_ADDR is", "ValueError"),
}


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("what", REFUSALS)
def test_a_rank_that_cannot_join_says_so_to_all(rank_pool, what, culprit):
    variables, why, kind = REFUSALS[what]
    answers = rank_pool.run(2, refused, culprit, variables, hosts=("a", "b"), timeout=60)
    for rank, (found, text) in enumerate(answers):
        assert f"rank {culprit} could not join group" in text and why in text
        assert found == (kind if rank == culprit else "DistBackendError")
    assert answers[0][1] == answers[1][1]


def test_ranks_that_protect_their_links_differently_are_told_so(rank_pool):
    answers = rank_pool.run(2, refused, 0, {"VCCL_LINK_SECURITY": "none"}, hosts=("a", "b"), timeout=60)
    # Both ranks may find the difference, and each then blames itself.
    text = "VCCL_LINK_SECURITY is none for rank 0 and encrypt for rank 1 in group"
    assert all(text in found for _, found in answers)
    assert "ValueError" in {kind for kind, _ in answers}
    # Rank 1 is on no ring with a rank of the other host, and only its messages go there.
    answers = rank_pool.run(4, refused, 1, {"VCCL_LINK_SECURITY": "none"}, hosts=tuple("aaab"), timeout=60)
    text = "VCCL_LINK_SECURITY is none for rank 1 and encrypt for rank 3 in group"
    assert all(text in found for _, found in answers), answers


NO_LIBZMQ = """
import datetime, os
os.environ["VCCL_HOSTID"] = os.environ["RANK"]
if os.environ["RANK"] == os.environ["CULPRIT"]:
    os.environ["VCCL_ZMQ_LIBRARY"] = "/nonexistent/libzmq.so"
import torch.distributed as dist
try:
    dist.init_process_group("vccl", timeout=datetime.timedelta(hours=1))
except dist.DistBackendError as error:
    print(f"[{os.environ['RANK']}] {error}".replace("\\n", " ") + "\\n", end="", flush=True)
"""


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_without_libzmq_says_so_to_all(vrun, tmp_path, culprit):
    (tmp_path / "make.py").write_text(NO_LIBZMQ)
    lines = vrun("--cards", 2, "make.py", env={"CULPRIT": str(culprit)}).splitlines()
    for rank in range(2):
        text = next(line for line in lines if line.startswith(f"[{rank}] "))
        assert f"rank {culprit} could not join group default_pg: " in text
        assert "libzmq, which could not be loaded" in text


def left_because(rank, size):
    """Rank 0 is killed, rank 1 raises for that and leaves, and rank 2 comes to the group only then."""
    on_a_card()
    die_together(0)
    if rank == 1:
        shared = default_store()
        failure(lambda: dist.all_reduce(torch.ones(4)))
        dist.destroy_process_group()
        shared.set("rank 1 has left", "")
        return None
    default_store().wait(["rank 1 has left"], datetime.timedelta(seconds=60))
    return failure(on_a_card)


@one_or_two_hosts
def test_the_death_is_named_and_not_who_left_because_of_it(rank_pool, hosts):
    *_, text = rank_pool.run(3, left_because, hosts=hosts, dying=[0], group_timeout=LONG, timeout=60)
    assert "rank 0" in text and "rank 1 left" not in text.partition(";")[0], text


def left_after_another_group(rank, size):
    """Rank 1 leaves the group of ranks 0 and 1; rank 0 raises for that, and leaves the default group too."""
    pair = dist.new_group([0, 1])
    on_a_card()
    shared = default_store()
    shared.set(f"rank {rank} is done", "")  # the failure ends the first operation, too, where that goes on
    shared.wait([f"rank {other} is done" for other in range(size)], datetime.timedelta(seconds=60))
    if rank == 1:
        dist.destroy_process_group(pair)
    if rank == 0:
        failure(lambda: dist.all_reduce(torch.ones(4), group=pair))
        dist.destroy_process_group()
        return None
    return failure(on_a_card)


@one_or_two_hosts
def test_who_leaves_after_a_failure_in_another_group_says_so(rank_pool, hosts):
    _, *texts = rank_pool.run(3, left_after_another_group, hosts=hosts, group_timeout=LONG, timeout=60)
    for text in texts:
        why = re.search(r"rank 0 left group default_pg \(after a failure elsewhere: (.*)\) while rank", text)
        assert why and re.match(r"rank 1 left group \S+ while rank 0 waited", why[1]), text


@pytest.mark.ranks(2)
@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_a_group_has_one_name(ranks, device):
    x = torch.ones(2 + ranks.rank, device=device)

    def mismatch(group):
        dist.all_reduce(x, group=group)
        torch.accelerator.synchronize()

    found = []
    for group in (dist.new_group(group_desc="described"), dist.new_group(), dist.group.WORLD):
        found.append((failure(lambda group=group: mismatch(group)), group.group_name))
        dist.destroy_process_group(group)  # or its failure stays on the stream
    described, unnamed, default = found
    assert "group described, but" in described[0]
    assert f"group {unnamed[1]}, but" in unnamed[0]
    assert "group default_pg, but" in default[0]


@pytest.mark.ranks(2, group_timeout=41)
def test_new_groups_take_the_timeout_of_the_default_group():
    def of(group):
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    given = datetime.timedelta(seconds=77)
    assert of(dist.new_group()) == 41
    assert of(dist.new_group(timeout=given)) == 77
    assert of(dist.new_group([0, 1])) == 41
