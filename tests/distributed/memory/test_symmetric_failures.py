"""Ranks that die, free their memory or do not signal, while others wait in symmetric memory."""

import datetime
import os
import re
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from common import backend_of, default_store
from symmetric_cases import OPERATORS, error_of, shared, world_name


def timed_out_signal(rank: int, size: int) -> str:
    _, handle = shared(16)
    if rank == 0:
        return error_of(lambda: handle.wait_signal(src_rank=1, timeout_ms=300))
    # The group has failed, and this rank learns of it in its own wait.
    return error_of(lambda: handle.wait_signal(src_rank=0))


def test_a_signal_that_never_comes(rank_pool):
    for text in rank_pool.run(2, timed_out_signal, group_timeout=600, timeout=60):
        assert re.search(r"rank 0 .*waited 300 ms for rank 1.*put_signal.*channel 0", text), text
        assert "vdev:0" in text


def waits_too_long(rank: int, size: int) -> str:
    _, handle = shared(16)
    backend_of()._set_default_timeout(datetime.timedelta(milliseconds=400))
    if rank:
        return error_of(lambda: handle.wait_signal(0, channel=1))
    handle.put_signal(1)
    return error_of(lambda: handle.put_signal(1))


def test_the_groups_timeout_bounds_a_wait(rank_pool):
    text = rank_pool.run(2, waits_too_long, group_timeout=600, timeout=60)[0]
    assert "waited 400 ms for rank " in text, text


def warns(rank: int, size: int) -> str:
    """Rank 1 gives its signal once rank 0 has said that it waits for it."""
    _, handle = shared(16)
    if rank == 1:
        default_store().wait(["warned"], datetime.timedelta(seconds=60))
        handle.put_signal(0)
        torch.accelerator.synchronize()
        return ""
    said: list[str] = []
    reader, writer = os.pipe()

    def listen() -> None:
        with open(reader) as lines:
            said.append(lines.readline())
        default_store().set("warned", "")

    listener = threading.Thread(target=listen)
    kept = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        listener.start()
        handle.wait_signal(1)
        torch.accelerator.synchronize()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        listener.join()
    return said[0]


def test_a_long_wait_is_worth_a_warning(rank_pool):
    text = rank_pool.run(2, warns, env={"VCCL_WARN_AFTER": "1"}, timeout=60)[0]
    assert re.search(r"rank 0 .*has waited \d+ s for rank 1.*put_signal.*channel 0.*goes on waiting", text), (
        text
    )
    assert "vdev:0" in text


def waits_for_the_dead(rank: int, size: int, call: str) -> str:
    _, handle = shared(16)
    default_store().set(f"through: {rank}", "")
    default_store().wait([f"through: {other}" for other in range(size)], datetime.timedelta(seconds=60))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: handle.wait_signal(src_rank=1) if call == "wait_signal" else handle.barrier())


@pytest.mark.parametrize("call", ["wait_signal", "barrier"])
def test_a_peer_that_dies_is_named(rank_pool, call):
    texts = rank_pool.run(3, waits_for_the_dead, call, dying=[1], group_timeout=1800, timeout=60)
    for rank in (0, 2):
        assert re.search(r"rank 1 \(pid \d+\) died", texts[rank]), texts[rank]


def reads_what_was_freed(rank: int, size: int) -> str:
    tensor, handle = shared(16)
    tensor.fill_(rank)
    handle.barrier()
    view = handle.get_buffer(1 - rank, (16,), torch.float32)
    torch.accelerator.synchronize()
    dist.barrier()
    if rank == 1:
        del view, tensor, handle
        reused = [torch.full((16,), 99.0, device="vdev") for _ in range(50)]
        torch.accelerator.synchronize()
        default_store().set("reused", "")
        default_store().wait(["done"], datetime.timedelta(seconds=60))
        return str(len(reused))
    default_store().wait(["reused"], datetime.timedelta(seconds=60))
    assert view.eq(1).all()  # the owner has not reused the memory
    assert handle.get_buffer(1, (16,), torch.float32).eq(1).all()
    text = error_of(lambda: handle.put_signal(dst_rank=1))
    text += error_of(lambda: handle.barrier())
    default_store().set("done", "")
    return text


def test_memory_that_its_owner_has_freed(rank_pool):
    text = rank_pool.run(2, reads_what_was_freed, group_timeout=600, timeout=60)[0]
    assert "rank 1 of group default_pg has freed its part" in text, text
    assert "rank 1 has freed its symmetric memory while rank 0" in text, text


def signals_before_it_frees(rank: int, size: int) -> str:
    tensor, handle = shared(16)
    torch.accelerator.synchronize()
    dist.barrier()
    if rank == 1:
        handle.put_signal(dst_rank=0)
        torch.accelerator.synchronize()
        del tensor, handle
        default_store().set("freed", "")
        default_store().wait(["taken"], datetime.timedelta(seconds=60))
        return ""
    default_store().wait(["freed"], datetime.timedelta(seconds=60))
    handle.wait_signal(src_rank=1)
    torch.accelerator.synchronize()
    text = error_of(lambda: handle.wait_signal(src_rank=1))
    default_store().set("taken", "")
    return text


def test_a_signal_of_a_rank_that_has_freed_its_memory_since(rank_pool):
    text = rank_pool.run(2, signals_before_it_frees, group_timeout=600, timeout=60)[0]
    assert "rank 1 of group default_pg has freed its part" in text, text


def aborts_while_a_peer_waits(rank: int, size: int) -> str:
    _, handle = shared(16)
    if rank == 1:
        default_store().wait(["waits"], datetime.timedelta(seconds=60))
        backend_of().abort()
        return ""
    default_store().set("waits", "")
    return error_of(lambda: handle.barrier())


def test_an_abort_ends_the_waits_for_signals(rank_pool):
    text = rank_pool.run(2, aborts_while_a_peer_waits, group_timeout=1800, timeout=60)[0]
    assert "rank 1 aborted the group" in text, text


def does_not_fit(rank: int, size: int) -> str:
    source, _ = shared(8)
    out, _ = shared(8)
    splits = torch.tensor([1, 7 if rank == 0 else 4], device="vdev")
    found = torch.zeros(2, 2, dtype=torch.int64, device="vdev")
    return error_of(lambda: OPERATORS.all_to_all_vdev(source, out, splits, found, world_name()))


def test_all_to_all_that_does_not_fit_is_an_error_on_all_ranks(rank_pool):
    for text in rank_pool.run(2, does_not_fit, group_timeout=600, timeout=60):
        assert "rank 1 of group default_pg: all_to_all_vdev: the output has 8 rows" in text, text


def ends_with_a_signal(rank: int, size: int) -> bool:
    """Rank 1 ends at once, and what it has given its stream still reaches rank 0."""
    tensor, handle = shared(16)
    if rank == 0:
        handle.wait_signal(src_rank=1)
        handle.barrier()
        return bool(tensor.eq(42).all())
    handle.get_buffer(0, (16,), torch.float32).fill_(42)
    handle.put_signal(dst_rank=0)
    handle.barrier()
    return True


def test_a_rank_that_ends_gives_its_last_signals(rank_pool):
    assert rank_pool.run(2, ends_with_a_signal, group_timeout=600, timeout=60) == [True, True]
