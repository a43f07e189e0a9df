"""Collectives: inputs that are overwritten, and results that are read, before anybody has waited."""

import torch
import torch.distributed as dist
from newer_names import all_gather_single, reduce_scatter_single
from pairs import LARGE, current, pinned, racing, side_stream, zeros

WAIT = r"wait\(\)"


@racing("read after write", WAIT, ranks=2)
def a_sum_is_read_before_it_is_waited_for(repaired: bool) -> None:
    x = zeros()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing("write after write", WAIT, ranks=2)
def the_tensor_of_a_sum_is_overwritten(repaired: bool) -> None:
    x = zeros()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.zero_()  # second
    work.wait()


@racing("read after write", r"wait_stream", ranks=2)
def a_collective_reads_what_a_side_stream_writes(repaired: bool) -> None:
    """A collective comes after the stream that is current at its call, and after no other."""
    x, out = zeros(), zeros(512)
    side = side_stream()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    all_gather_single(out, x)  # second


@racing("write after write", r"wait_stream|must wait for", ranks=2)
def an_asynchronous_collective_begins_before_a_side_stream_ends(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    dist.all_reduce(x, async_op=True).wait()  # second


@racing("use after free", r"record_stream", ranks=2)
def memory_is_freed_when_another_stream_has_waited(repaired: bool) -> None:
    """The handle holds the memory until somebody waits. Then the memory's stream gets it back."""
    x, side = torch.zeros(LARGE, device="vdev"), torch.vdev.Stream()
    work = dist.all_reduce(x, async_op=True)  # first
    with torch.vdev.stream(side):
        work.wait()
    if repaired:
        current().wait_stream(side)
    del x, work
    torch.zeros(LARGE, device="vdev")  # second


@racing("read after write", WAIT, ranks=2)
def gathered_parts_are_read_too_early(repaired: bool) -> None:
    x, parts = zeros(), [zeros(), zeros()]
    work = dist.all_gather(parts, x, async_op=True)  # first
    if repaired:
        work.wait()
    parts[1].sum()  # second
    work.wait()


@racing("write after read", WAIT, ranks=2)
def the_input_of_an_all_gather_is_overwritten(repaired: bool) -> None:
    x, out = zeros(), zeros(512)
    work = all_gather_single(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    x.add_(1)  # second
    work.wait()


@racing("write after read", WAIT, ranks=2)
def the_input_of_a_reduce_scatter_is_overwritten(repaired: bool) -> None:
    x, out = zeros(512), zeros()
    work = reduce_scatter_single(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    x[300:].zero_()  # second
    work.wait()


@racing("read after write", WAIT, ranks=2)
def the_result_of_a_reduce_scatter_is_read_too_early(repaired: bool) -> None:
    x, out = zeros(512), zeros()
    work = reduce_scatter_single(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    out.norm()  # second
    work.wait()


@racing("read after write", WAIT, ranks=2)
def the_result_of_an_all_to_all_is_read_too_early(repaired: bool) -> None:
    x, out = zeros(), zeros()
    work = dist.all_to_all_single(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    out[:8].sum()  # second
    work.wait()


@racing("write after read", WAIT, ranks=2)
def the_input_of_an_uneven_all_to_all_is_overwritten(repaired: bool) -> None:
    rank = dist.get_rank()
    x, out = zeros(4), zeros(2 if rank == 0 else 6)
    received = [1, 1] if rank == 0 else [3, 3]
    work = dist.all_to_all_single(out, x, received, [1, 3], async_op=True)  # first
    if repaired:
        work.wait()
    x.fill_(2)  # second
    work.wait()


@racing("write after read", WAIT, ranks=2, on=(0,))
def the_root_overwrites_what_it_broadcasts(repaired: bool) -> None:
    """The root only reads. Other ranks leave the tensor alone until they have waited."""
    x = zeros()
    work = dist.broadcast(x, 0, async_op=True)  # first
    if repaired or dist.get_rank() != 0:
        work.wait()
    x.add_(1)  # second
    work.wait()


@racing("read after write", WAIT, ranks=2, on=(1,))
def a_broadcast_tensor_is_read_too_early(repaired: bool) -> None:
    """The root may read what it sends."""
    x = zeros()
    work = dist.broadcast(x, 0, async_op=True)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing("read after write", r"wait\(\).*with the default stream .*as the current stream", ranks=2)
def another_stream_waits_than_the_one_that_reads(repaired: bool) -> None:
    """wait() orders the stream that is current at its call, and the host not at all."""
    x = zeros()
    side = side_stream()
    work = dist.all_reduce(x, async_op=True)  # first
    with torch.vdev.stream(current() if repaired else side):
        work.wait()
    x.sum()  # second


@racing("read after write", r"wait_stream", ranks=2)
def a_collective_of_the_current_stream_is_read_on_another(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    dist.all_reduce(x)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # second


@racing("read after write", r"wait\(\)|wait_stream", ranks=2)
def only_the_last_of_several_collectives_is_waited_for_on_another_group(repaired: bool) -> None:
    """The collectives of one group are in order, and those of two groups are not."""
    group = dist.new_group([0, 1])
    x, y = zeros(), zeros()
    first = dist.all_reduce(x, async_op=True)  # first
    second = dist.all_reduce(y, group=group, async_op=True)
    (first if repaired else second).wait()
    x.sum()  # second
    first.wait()
    second.wait()
    torch.accelerator.synchronize()
    dist.destroy_process_group(group)


@racing("write after write", r"wait\(\)|must wait for", ranks=2)
def two_groups_sum_one_tensor_at_once(repaired: bool) -> None:
    group = dist.new_group([0, 1])
    x = zeros()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    other = dist.all_reduce(x, group=group, async_op=True)  # second
    work.wait()
    other.wait()
    torch.accelerator.synchronize()
    dist.destroy_process_group(group)


@racing("read after write", WAIT, ranks=2)
def coalesced_sums_are_read_too_early(repaired: bool) -> None:
    x, y = zeros(), zeros(8)
    # The collectives begin at the end of the block, which Python counts as its first line.
    with dist._coalescing_manager(async_ops=True) as manager:  # first
        dist.all_reduce(x)
        dist.all_reduce(y)
    if repaired:
        manager.wait()
    y.sum()  # second
    manager.wait()


@racing("read after write", r"wait\(\)|wait_stream", ranks=2)
def the_future_is_asked_on_another_stream(repaired: bool) -> None:
    """The wait of a future orders the current stream, like that of the work."""
    x = zeros()
    side = side_stream()
    future = dist.all_reduce(x, async_op=True).get_future()  # first
    with torch.vdev.stream(current() if repaired else side):
        future.wait()
    x.sum()  # second


@racing("read after write", r"wait\(\)|wait_stream|must wait for", ranks=2)
def what_then_computes_is_read_too_early(repaired: bool) -> None:
    """A callback of a future runs on a stream of its own, which is ordered behind the collective."""
    x, out = zeros(), zeros()
    work = dist.all_reduce(x, async_op=True)
    after = work.get_future().then(lambda done: out.copy_(done.value()[0]))  # first
    if repaired:
        after.wait()
    else:
        work.wait()
    while not after.done():
        pass
    out.sum()  # second
    after.wait()


@racing("read after write", r"must wait for|wait\(\)", ranks=2)
def a_cpu_tensor_of_an_asynchronous_sum_is_read_too_early(repaired: bool) -> None:
    x = torch.zeros(256)
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing("write after read", r"must wait for|wait\(\)", ranks=2)
def a_cpu_tensor_is_overwritten_while_it_is_gathered(repaired: bool) -> None:
    x, parts = torch.zeros(16), [torch.zeros(16), torch.zeros(16)]
    work = dist.all_gather(parts, x, async_op=True)  # first
    if repaired:
        work.wait()
    x.fill_(1)  # second
    work.wait()


@racing("read after write", r"the host must wait for .*synchronize\(\)", ranks=2)
def the_host_takes_wait_for_a_synchronisation(repaired: bool) -> None:
    """wait() lets the stream wait. The copy to the host is not over when it returns."""
    x, host = zeros(), pinned()
    dist.all_reduce(x, async_op=True).wait()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.sum()  # second
    current().synchronize()


@racing("use after free", r"record_stream|wait\(\)|must wait for", ranks=2)
def a_side_streams_input_is_freed_behind_a_collective(repaired: bool) -> None:
    """The collective runs on the side stream, and the memory belongs to the default one."""
    x = torch.zeros(3 << 20, device="vdev")
    side = side_stream()
    with torch.vdev.stream(side):
        dist.all_reduce(x)  # first
    if repaired:
        x.record_stream(side)
    del x
    torch.ones(3 << 20, device="vdev")  # second


@racing("read after write", r"wait\(\)", ranks=2)
def a_bucket_is_unflattened_too_early(repaired: bool) -> None:
    """A reduction of a flat bucket, and a gradient that is a view of it."""
    flat = zeros(64)
    gradient = flat[16:48].view(4, 8)
    work = dist.all_reduce(flat, async_op=True)  # first
    if repaired:
        work.wait()
    gradient.norm()  # second
    work.wait()


@racing("read after write", r"wait\(\)", ranks=2, on=(0,))
def a_gathered_list_is_read_too_early_on_its_root(repaired: bool) -> None:
    root = dist.get_rank() == 0
    x, parts = zeros(), [zeros(), zeros()] if root else None
    work = dist.gather(x, parts, 0, async_op=True)  # first
    if repaired:
        work.wait()
    (parts[0] if parts else x).sum()  # second
    work.wait()


@racing("write after read", r"wait\(\)", ranks=2)
def the_loop_overwrites_its_bucket(repaired: bool) -> None:
    """Two buckets in turn. The wait is for the work of this turn's other bucket."""
    buckets, outs, works = [zeros(), zeros()], [zeros(512), zeros(512)], []
    group = dist.new_group([0, 1])
    works.append(all_gather_single(outs[0], buckets[0], async_op=True))  # first
    works.append(all_gather_single(outs[1], buckets[1], group=group, async_op=True))
    works[0 if repaired else 1].wait()
    buckets[0].fill_(1)  # second
    for work in works:
        work.wait()
    torch.accelerator.synchronize()
    dist.destroy_process_group(group)


@racing("read after write", r"wait\(\)|must wait for", ranks=2)
def a_functional_collective_is_read_without_its_wait(repaired: bool) -> None:
    """The plain operators leave the wait to the program."""
    x = zeros()
    name = dist.group.WORLD.group_name
    out = torch.ops._c10d_functional.all_reduce(x, "sum", name)  # first
    if repaired:
        out = torch.ops._c10d_functional.wait_tensor(out)
    out.sum()  # second
    torch.ops._c10d_functional.wait_tensor(out)


@racing("write after read", r"wait\(\)|must wait for", ranks=2, on=(1,))
def what_goes_to_the_root_is_overwritten(repaired: bool) -> None:
    """Other ranks than the root only read in a reduce, and the root waits."""
    x = zeros()
    work = dist.reduce(x, 0, async_op=True)  # first
    if repaired or dist.get_rank() == 0:
        work.wait()
    x.zero_()  # second
    work.wait()


@racing("write after read", r"wait\(\)|must wait for", ranks=2, on=(0,))
def one_of_the_scattered_tensors_is_overwritten(repaired: bool) -> None:
    root = dist.get_rank() == 0
    x, parts = zeros(), [zeros(), zeros()] if root else None
    work = dist.scatter(x, parts, 0, async_op=True)  # first
    if repaired or not root:
        work.wait()
    (parts[1] if parts else x).zero_()  # second
    work.wait()


@racing("write after read", r"wait\(\)|must wait for", ranks=2)
def a_list_for_all_to_all_is_overwritten(repaired: bool) -> None:
    inputs, outputs = [zeros(), zeros()], [zeros(), zeros()]
    work = dist.all_to_all(outputs, inputs, async_op=True)  # first
    if repaired:
        work.wait()
    inputs[1].zero_()  # second
    work.wait()
