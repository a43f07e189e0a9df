"""Signals while a rank waits: the handler runs, its exception ends the wait, and the group is aborted."""

import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from vccl.testing.ports import reserved_port

LONG = 30 * 60
GENEROUS = datetime.timedelta(seconds=60)


class FromHandler(Exception):
    """What a program's own handler raises."""


@contextmanager
def signalled(number: int, error: BaseException | None) -> Iterator[Callable[[], bool]]:
    """Sends this process the signal again and again, inside the context; its handler raises `error`.

    The handler raises once each time that the function which is yielded arms it; that returns whether it has
    been called at all.
    """
    armed = called = False

    def handler(*_: object) -> None:
        nonlocal armed, called
        called = True
        if armed and error is not None:
            armed = False
            raise error

    def arm() -> bool:
        nonlocal armed
        armed = True
        return called

    def send() -> None:
        while not stop.wait(0.2):
            os.kill(os.getpid(), number)

    stop = threading.Event()
    before = signal.signal(number, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield arm
    finally:
        armed = False
        stop.set()
        sender.join()
        signal.signal(number, before)


def has_failed(group: dist.ProcessGroup) -> bool:
    return group._get_backend(torch.device("cpu")).get_error() != torch._C._distributed_c10d.ErrorType.SUCCESS


def interrupt(
    call: Callable[[], object], group: dist.ProcessGroup, number: int, error: BaseException
) -> None:
    """Interrupts `call` inside its wait. An exception that came before the wait did not abort the group."""
    with signalled(number, error) as arm:
        while not has_failed(group):
            with pytest.raises(type(error)) as raised:
                arm()
                call()
            assert raised.value is error
    # The caller keeps the error, whose traceback would keep the tensors of the call.
    error.__traceback__ = None


# The elements of a collective that waits. Of fewer, a rank of another host may need no more than what the
# interrupted rank has sent before, and then ends the collective well.
COUNT = 1000


def barriers() -> None:
    """A barrier has no elements. So one may end well for the rank that comes last, and the next one fails."""
    dist.barrier()
    dist.barrier()


def async_all_reduce(device: str) -> dist.Work:
    return dist.all_reduce(torch.ones(COUNT, device=device), async_op=True)


def all_reduce_and(read: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(COUNT, device="vdev")
    dist.all_reduce(x)
    read(x)


def all_reduce_on_two_streams() -> None:
    """The current stream waits for another one, where the collective is."""
    x = torch.ones(COUNT, device="vdev")
    with torch.vdev.stream(torch.vdev.Stream()):
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.vdev.synchronize()


def event_synchronize() -> None:
    event = torch.vdev.Event()
    dist.all_reduce(torch.ones(COUNT, device="vdev"))
    event.record()
    event.synchronize()


def messages(device: str) -> Callable[[], object]:
    def receive() -> None:
        x = torch.ones(4, device=device)
        dist.recv(x, 2)
        x.sum().item()

    return receive


CALLS: dict[str, Callable[[], object]] = {
    "cpu": lambda: dist.all_reduce(torch.ones(COUNT)),
    "cpu_wait": lambda: async_all_reduce("cpu").wait(),
    "cpu_wait_with_timeout": lambda: async_all_reduce("cpu").wait(datetime.timedelta(seconds=LONG)),
    "cpu_recv": messages("cpu"),
    "barrier": barriers,
    "item": lambda: all_reduce_and(lambda x: x[0].item()),
    "operator": lambda: all_reduce_and(lambda x: x + 1),
    "synchronize": lambda: all_reduce_and(lambda _: torch.vdev.synchronize()),
    "card_wait": lambda: (async_all_reduce("vdev").wait(), torch.vdev.synchronize()),
    "card_wait_with_timeout": lambda: async_all_reduce("vdev").wait(datetime.timedelta(seconds=LONG)),
    "card_two_streams": all_reduce_on_two_streams,
    "card_event": event_synchronize,
    "card_recv": messages("vdev"),
}


def waiting(rank: int, size: int, name: str, number: int, error: BaseException) -> None:
    """Rank 0 is interrupted while it waits for rank 2, as rank 1 does."""
    group = dist.group.WORLD
    store = dist.PrefixStore("test", group.get_group_store())
    for device in ("cpu", "vdev"):  # so that a communicator of each is there
        dist.all_reduce(torch.ones(1, device=device))
    torch.vdev.synchronize()
    if rank == 0:
        interrupt(CALLS[name], group, number, error)
        store.set("interrupted", "")
        # Again and again, and nothing of the interruption comes later.
        with pytest.raises(dist.DistBackendError, match=type(error).__name__):
            dist.barrier()
        return
    if rank == 2:
        store.wait(["interrupted"], GENEROUS)
    with pytest.raises(dist.DistBackendError, match=rf"rank 0 .*interrupted by {type(error).__name__}"):
        CALLS[name]()


HOSTS = {"one_host": ("a", "a", "a"), "three_hosts": ("a", "b", "c")}
every_placement = pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS.keys())


@every_placement
@pytest.mark.parametrize("name", CALLS)
def test_waits(rank_pool, name, hosts):
    rank_pool.run(3, waiting, name, signal.SIGINT, KeyboardInterrupt(), hosts=hosts, group_timeout=LONG)


@pytest.mark.ranks(3, group_timeout=LONG)
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, SystemExit(3)), (signal.SIGUSR2, FromHandler("from a handler"))],
    ids=["SIGTERM", "own_exception"],
)
@pytest.mark.parametrize("name", ["cpu", "item", "cpu_recv"])
def test_other_signals_and_exceptions(ranks, name, number, error):
    waiting(ranks.rank, ranks.size, name, number, error)


@pytest.mark.ranks(2, group_timeout=LONG)
def test_another_group_goes_on(ranks):
    """What is interrupted does not abort a group that it did not wait for, and a second interrupt works."""
    other = dist.new_group()
    world = dist.group.WORLD
    store = dist.PrefixStore("test", world.get_group_store())
    if ranks.rank == 0:
        interrupt(lambda: dist.all_reduce(torch.ones(4)), world, signal.SIGINT, KeyboardInterrupt())
        assert not has_failed(other)
        store.set("interrupted", "")
    else:
        store.wait(["interrupted"], GENEROUS)
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x, group=other)
    assert x.tolist() == [ranks.size] * 4
    dist.barrier(other)
    if ranks.rank == 0:
        receive = lambda: dist.recv(torch.ones(4), 1, group=other)  # noqa: E731
        interrupt(receive, other, signal.SIGINT, KeyboardInterrupt())
        store.set("interrupted twice", "")
    else:
        store.wait(["interrupted twice"], GENEROUS)


@pytest.mark.ranks(2, group_timeout=LONG)
@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_a_handler_that_raises_nothing(ranks, device):
    """A handler that raises nothing changes nothing but that it has run."""
    store = dist.PrefixStore("test", dist.group.WORLD.get_group_store())
    x = torch.ones(4, device=device)
    if ranks.rank == 0:
        with signalled(signal.SIGUSR2, None) as was_called:

            def tell() -> None:
                while not was_called():
                    stopped.wait(0.05)
                store.set("called", "")

            stopped = threading.Event()
            teller = threading.Thread(target=tell)
            teller.start()
            dist.all_reduce(x)
            assert x.tolist() == [ranks.size] * 4
            teller.join()
    else:
        store.wait(["called"], GENEROUS)
        dist.all_reduce(x)
    dist.barrier()


@pytest.mark.ranks(2, group_timeout=LONG)
def test_other_threads(ranks):
    """Handlers run in the main thread: what other threads wait for goes on."""
    store = dist.PrefixStore("test", dist.group.WORLD.get_group_store())
    if ranks.rank == 0:
        with signalled(signal.SIGUSR2, FromHandler()) as arm:
            x = torch.ones(4, device="vdev")
            ended = threading.Event()  # a join that was interrupted takes the thread for ended
            threading.Thread(target=lambda: (all_reduce_and_keep(x), ended.set())).start()
            with pytest.raises(FromHandler):
                arm()
                ended.wait(GENEROUS.total_seconds())
            store.set("called", "")
            assert ended.wait(GENEROUS.total_seconds())
        assert x.tolist() == [ranks.size] * 4
    else:
        store.wait(["called"], GENEROUS)
        all_reduce_and_keep(torch.ones(4, device="vdev"))
    dist.barrier()


def all_reduce_and_keep(x: torch.Tensor) -> None:
    dist.all_reduce(x)
    torch.vdev.synchronize()


@pytest.mark.ranks(2, group_timeout=LONG)
def test_making_a_group(ranks):
    """Rank 0 is interrupted while the ranks meet for a new group."""
    store = dist.PrefixStore("test", dist.group.WORLD.get_group_store())
    if ranks.rank == 0:
        error = KeyboardInterrupt()
        with signalled(signal.SIGINT, error) as arm:
            with pytest.raises(KeyboardInterrupt) as raised:
                arm()
                dist.new_group()
            assert raised.value is error
        store.set("interrupted", "")
        return
    store.wait(["interrupted"], GENEROUS)


JOB = """
import sys, torch, torch.distributed as dist
rank, method = int(sys.argv[1]), sys.argv[2]
print("running", flush=True)
dist.init_process_group("vccl", init_method=method, rank=rank, world_size=2)
print("joined", flush=True)
try:
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    dist.all_reduce(torch.ones(4))
finally:
    dist.destroy_process_group()
"""


def interrupt_until_end(rank, number: int) -> str:
    """What it prints until its end, which comes with a signal, or, where it came too early, with the next."""
    for _ in range(60):
        rank.send_signal(number)
        try:
            rank.wait(2)
            return rank.output(1)
        except subprocess.TimeoutExpired:
            continue
    return rank.output(1)


def await_printed(rank, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in rank.printed():
        assert rank.poll() is None and time.monotonic() < deadline, rank.printed()
        time.sleep(0.05)


@pytest.fixture
def job(tmp_path, start):
    path = tmp_path / "job.py"
    path.write_text(JOB)

    def run(rank: int, method: str):
        return start([sys.executable, path, rank, method])

    return run


def test_a_process_ends(job, tmp_path):
    """With nothing but Python's own handler, and the timeout that groups have if none is given."""
    method = f"file://{tmp_path}/store"
    ranks = [job(rank, method) for rank in range(2)]
    for rank in ranks:
        await_printed(rank, "joined")
    text = interrupt_until_end(ranks[0], signal.SIGINT)
    assert "KeyboardInterrupt" in text
    assert ranks[0].returncode == -signal.SIGINT
    text = ranks[1].output(60)
    # A signal that comes before the wait aborts nothing: rank 0 leaves the group then.
    assert "DistBackendError: rank 0 " in text


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_init_alone(job, rank, number):
    """The other rank never comes: rank 0 waits for it, and rank 1 for the store that rank 0 serves."""
    with reserved_port() as port:
        alone = job(rank, f"tcp://127.0.0.1:{port}")
        await_printed(alone, "running")
        text = interrupt_until_end(alone, number)
    assert alone.returncode == -number
    assert ("KeyboardInterrupt" in text) == (number == signal.SIGINT)


@pytest.mark.ranks(1, group=False)
def test_no_server():
    with reserved_port() as port:  # where nobody listens
        text = rf"rank 1 could not connect .*127.0.0.1:{port} within the timeout of 0.5 s"
        with pytest.raises(dist.DistNetworkError, match=text):
            dist.init_process_group(
                "vccl",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=1,
                world_size=2,
                timeout=datetime.timedelta(seconds=0.5),
            )
