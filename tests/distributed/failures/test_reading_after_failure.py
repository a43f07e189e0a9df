"""What a failed collective should have written is not read without an error (docs/errors.md)."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from common import hear, tell
from disagreements import MISMATCH, Held, disagree, raises
from newer_names import all_gather_single

SECOND = datetime.timedelta(seconds=1)


def one_thread(rank, size):
    y, z, w = (torch.ones(4, device="vdev") for _ in range(3))
    x, group = disagree(rank, y, w)
    raises(lambda: x[0].item())
    raises(lambda: y[0].item())
    for reader in [
        lambda: y + 1,
        lambda: y.add_(1),
        lambda: y.cpu(),
        lambda: y.tolist(),
        lambda: y.view(2, 2)[1],  # a view alone reads nothing; its text does
        lambda: z.copy_(y),
        lambda: torch.add(z, y, out=w),
        lambda: torch._foreach_add([z, y], 1),
        lambda: torch.cat([z, y]),
        lambda: y.clone(),
        lambda: y.bool().all(),
        lambda: torch.zeros(4, device="vdev").masked_fill_(y > 0, 1),
    ]:
        raises(lambda reader=reader: str(reader()))
    # Who reads something else is not charged, and nothing was written meanwhile.
    assert (z + 1).tolist() == [2.0] * 4
    assert torch.empty_like(y).shape == y.shape
    # What is written anew, as a whole or in part, is read again.
    y[1] = 5
    assert y[1].item() == 5
    raises(lambda: y[0].item())
    y.fill_(3)
    assert y.tolist() == [3.0] * 4
    torch.add(z, z, out=w)
    assert w.tolist() == [2.0] * 4
    raises(lambda: x[0].item())
    x.copy_(torch.arange(3 + rank))
    assert x[2].item() == 2
    # Whoever synchronises with the stream is told until the group is dealt with.
    raises(torch.vdev.synchronize)
    raises(torch.vdev.current_stream().synchronize)
    raises(torch.vdev.current_stream().record_event().synchronize)
    dist.destroy_process_group(group)
    torch.vdev.synchronize()


@pytest.mark.ranks(2)
def test_one_thread(ranks):
    one_thread(ranks.rank, ranks.size)


@pytest.mark.ranks(2, hosts=["here", "there"])
def test_one_thread_on_two_hosts(ranks):
    one_thread(ranks.rank, ranks.size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["destroy", "abort"])
def test_until_the_group_is_dealt_with(ranks, how):
    y = torch.ones(4, device="vdev")
    x, group = disagree(ranks.rank, y)
    raises(lambda: x[0].item())
    raises(lambda: y[0].item())
    if how == "abort":
        group._get_backend(torch.device("vdev")).abort()
    else:
        dist.destroy_process_group(group)
    assert (x[0].item(), y[0].item()) == (1, 1)
    torch.vdev.synchronize()
    # Another group's failure is its own.
    x, _ = disagree(ranks.rank)
    raises(lambda: x[0].item())


@pytest.mark.ranks(2)
def test_a_bystander_on_the_same_stream(ranks):
    """A bystander on the default stream finishes the collective, and neither takes nor gets its error."""
    x = torch.ones(3 + ranks.rank, device="vdev")
    called, read = threading.Event(), threading.Event()
    seen = []

    def bystander():
        torch.accelerator.set_device_index(ranks.rank)
        ones = torch.ones(4, device="vdev")
        called.wait(60)
        for _ in range(3):
            seen.append((ones + 1).tolist())
        read.set()

    thread = threading.Thread(target=bystander)
    thread.start()
    group = dist.new_group()
    dist.all_reduce(x, group=group)
    called.set()
    read.wait(60)
    raises(lambda: x[0].item())
    thread.join()
    assert seen == [[2.0] * 4] * 3
    raises(torch.vdev.synchronize)
    raises(lambda: x[0].item())


@pytest.mark.ranks(2)
def test_freed_and_moved_memory(ranks):
    x, _ = disagree(ranks.rank)
    raises(lambda: x[0].item())
    address, count = x.data_ptr(), x.numel()
    x = None
    blocks = [torch.empty(count, device="vdev") for _ in range(1000)]
    assert address in {block.data_ptr() for block in blocks}
    for block in blocks:
        block.sum().item()
    # A storage that moves takes its state along.
    x = torch.ones(3 + ranks.rank, device="vdev")
    group = dist.new_group()
    dist.all_reduce(x, group=group)
    raises(lambda: x[0].item())
    x.resize_(100_000)
    raises(lambda: x[0].item())
    x[50_000:].zero_()
    assert x[50_000].item() == 0
    # A record_stream() and a free leave nothing behind either.
    x.record_stream(torch.vdev.Stream())
    x = None
    assert torch.zeros(100_000, device="vdev").sum().item() == 0


@pytest.mark.ranks(2)
def test_asynchronous_collectives_and_strided_outputs(ranks):
    group = dist.new_group()
    table = torch.ones(3 + ranks.rank, 4, device="vdev")
    with Held():
        work = dist.all_reduce(table[:, 1], group=group, async_op=True)
        later = dist.all_reduce(table[:, 2], group=group, async_op=True)
    future = work.get_future()
    for each in (work, later):
        with pytest.raises(dist.DistBackendError):
            each.wait()
            torch.vdev.synchronize()
        raises(each.wait, "all_reduce")
    assert not work.is_success()
    future.wait()
    # Strided outputs: their elements, and none in between.
    assert table[:, 0].sum().item() == 3 + ranks.rank
    raises(lambda: table[:, 1].sum())
    raises(lambda: table[0].sum())
    raises(lambda: table.T.contiguous())
    table[:, 1].zero_()
    table[:, 2] = 7
    assert table.sum().item() == (3 + ranks.rank) * 9


@pytest.mark.ranks(2)
def test_waits_on_the_cpu(ranks):
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(3 + ranks.rank), group=group, async_op=True)
    raises(work.wait)
    raises(lambda: work.wait(SECOND))
    with pytest.raises(RuntimeError, match=MISMATCH):
        work.get_future().wait()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ended", [False, True], ids=["at once", "after its end"])
def test_messages(ranks, ended):
    group = dist.new_group()
    if ranks.rank == 0:
        x = torch.ones(3, device="vdev")
        dist.isend(x, 1, group=group)
        hear("failed")
        assert x.sum().item() == 3  # what was sent is as it was
        return
    y = torch.ones(4, device="vdev")
    work = dist.irecv(y, 0, group=group)
    while ended and not work.is_completed():
        time.sleep(0.001)
    with pytest.raises(dist.DistBackendError):
        work.wait()
        torch.vdev.synchronize()
    raises(work.wait, "received message.*4 elements")
    raises(torch.vdev.synchronize, "received message.*4 elements")
    raises(torch.vdev.current_stream().synchronize, "received message.*4 elements")
    raises(lambda: y[0].item(), "received message.*4 elements")
    y.zero_()
    assert y[0].item() == 0
    tell("failed")


@pytest.mark.ranks(2)
def test_other_groups_that_read_it(ranks):
    """A group that works is given what a failed one left, and fails on all ranks."""
    rank = ranks.rank
    works, sends = dist.new_group(), dist.new_group()
    y = torch.ones(4, device="vdev")
    x, _ = disagree(rank, y)
    raises(lambda: x[0].item())
    gathered = torch.zeros(8, device="vdev")
    all_gather_single(gathered, torch.ones(4, device="vdev") if rank else y, group=works)
    raises(lambda: gathered[0].item(), "rank 0 of .*all_gather.*(failed operation|3 elements)")
    # The same for messages.
    other = torch.ones(4, device="vdev")
    if rank == 1:
        work = dist.irecv(other, 0, group=sends)
        tell("called")
    else:
        hear("called")
        work = dist.isend(y, 1, group=sends)
    raises(lambda: work.wait(60 * SECOND), "send")
    if rank:
        raises(lambda: other[0].item(), "send")


@pytest.mark.ranks(2)
def test_a_collective_that_overwrites_it(ranks):
    """A collective that writes the memory anew makes it readable."""
    works = dist.new_group()
    y = torch.ones(4, device="vdev")
    x, _ = disagree(ranks.rank, y)
    raises(lambda: y[0].item())
    if ranks.rank == 0:
        y.fill_(6)
    dist.broadcast(y, 0, group=works)
    assert y.tolist() == [6.0] * 4
    raises(lambda: x[0].item())


@pytest.mark.ranks(2)
def test_copies_that_nobody_waits_for(ranks):
    rank = ranks.rank
    x, group = disagree(rank)
    pinned = torch.zeros(3 + rank, pin_memory=True)
    ran = []
    pinned.copy_(x, non_blocking=True)
    event = torch.vdev.current_stream().record_event()
    torch.vdev._launch_host_func(lambda: ran.append(pinned.tolist()))
    raises(event.synchronize)
    raises(torch.vdev.current_stream().synchronize)
    assert pinned.tolist() == [0.0] * (3 + rank) and ran == []
    # Nobody knows what the host function should have written, so nothing runs behind it.
    raises(lambda: torch.ones(1, device="vdev").item())
    # Another stream, which waits for nothing but the host.
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        back = torch.ones(3 + rank, device="vdev")
        assert back.tolist() == [1.0] * (3 + rank)
        back.copy_(pinned, non_blocking=True)
        raises(lambda: back[0].item())
        pinned.copy_(x, non_blocking=True)
    raises(stream.synchronize)
    dist.destroy_process_group(group)
    stream.synchronize()
    pinned.copy_(x, non_blocking=True)
    torch.vdev.synchronize()
    assert pinned.tolist() == [1.0] * (3 + rank)


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
def test_copies_between_cards(ranks):
    group = dist.new_group()
    x = torch.ones(3 + ranks.rank, device="vdev")
    early, other = (torch.zeros(3 + ranks.rank, device=f"vdev:{ranks.rank + 2}") for _ in range(2))
    with Held():
        dist.all_reduce(x, group=group)
        early.copy_(x)  # before anybody knows of the failure
    raises(lambda: early[0].item())
    raises(lambda: other.copy_(x))
    raises(lambda: x.to(other.device))
    assert other.sum().item() == 0


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
def test_backward_raises_where_it_was_called(ranks):
    weight = torch.ones(4, device="vdev", requires_grad=True)
    loss = (weight * weight).sum()
    group = dist.new_group()
    x = torch.ones(3 + ranks.rank, device="vdev")
    with Held():
        dist.all_reduce(x, group=group)
        dist.all_reduce(weight.data, group=group)
        # Nobody knows of the failure yet, so the result raises.
        loss.backward(retain_graph=True)
    raises(lambda: weight.grad.sum().item())
    raises(lambda: loss.backward(retain_graph=True))
    with torch.no_grad():
        weight.fill_(2)
    raises(lambda: (weight[: 3 + ranks.rank] * x).sum().backward())


@pytest.mark.ranks(2)
def test_a_skipped_collective(ranks):
    """A collective that never ran, as the program's own host function had failed before it."""

    def fail():
        raise ValueError("the reason")

    group = dist.new_group()
    x = torch.ones(4, device="vdev")
    with Held():
        torch.vdev._launch_host_func(fail)
        dist.all_reduce(x, group=group)
        # The failure of one rank is the group's, and the other's call would raise it.
        tell(f"called by {ranks.rank}")
        hear(f"called by {1 - ranks.rank}")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the reason"):
            torch.vdev.synchronize()
    assert any("the reason" in text for text in torch.vdev.clear_errors())
    raises(lambda: x[0].item(), "did not run its all_reduce.*the reason")
    raises(torch.vdev.synchronize, "did not run its all_reduce")


@pytest.mark.ranks(2)
def test_a_group_that_is_destroyed_while_a_collective_is_under_way(ranks):
    group = dist.new_group()
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x, group=group)
    torch.vdev.synchronize()
    dist.distributed_c10d._set_pg_timeout(SECOND, group)
    if ranks.rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        dist.destroy_process_group(group)
        tell("destroyed")
        # The program could not know of it before, and no group is left to deal with.
        raises(lambda: x[0].item(), "all_reduce|destroyed")
        raises(work.wait, "all_reduce|destroyed")
        x.zero_()
        assert x[0].item() == 0
    else:
        hear("destroyed")


@pytest.mark.ranks(2)
def test_coalesced_collectives(ranks):
    group = dist.new_group()
    first, second = torch.ones(4, device="vdev"), torch.ones(3 + ranks.rank, device="vdev")
    with dist._coalescing_manager(group=group, async_ops=True) as manager:
        dist.all_reduce(first, group=group)
        dist.all_reduce(second, group=group)
    with pytest.raises(dist.DistBackendError):
        manager.wait()
        torch.vdev.synchronize()
    raises(manager.wait, "all_reduce")
    raises(lambda: first[0].item(), "all_reduce")
    raises(lambda: second[0].item(), "all_reduce")


@pytest.mark.ranks(2)
def test_ddp(ranks):
    """DDP's gradients, of which one rank has other ones than the rest, reach no optimizer."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3 + ranks.rank).to("vdev")
    model = torch.nn.parallel.DistributedDataParallel(
        net, device_ids=[ranks.rank], init_sync=False, gradient_as_bucket_view=bool(ranks.rank)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(dist.DistBackendError):
        model(torch.ones(2, 4, device="vdev")).sum().backward()
        optimizer.step()
        net.weight.sum().item()
    with pytest.raises(RuntimeError):
        optimizer.step()
        net.weight.sum().item()
        torch.vdev.synchronize()
