"""Hooks of data parallelism with streams of their own, and frameworks' use of collectives."""

import torch
import torch.distributed as dist
from newer_names import all_gather_single, reduce_scatter_single
from pairs import current, pinned, racing, side_stream, zeros
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def linear() -> nn.Linear:
    return nn.Linear(16, 16, bias=False, device="vdev")


@racing("read after write", r"wait_stream|must wait for", ranks=2)
def a_ddp_hook_does_not_wait_for_the_bucket(repaired: bool) -> None:
    """A hook that watches the norm of each bucket on a stream of its own."""
    model = DistributedDataParallel(linear())
    side = side_stream()

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if repaired:
            side.wait_stream(current())
        with torch.vdev.stream(side):
            bucket.buffer().norm()  # second
        current().wait_stream(side)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(first_value)

    model.register_comm_hook(None, hook)
    loss = model(zeros(4, 16)).sum()
    loss.backward()  # first
    torch.accelerator.synchronize()


def first_value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()[0]


@racing("write after write", r"wait_stream|must wait for", ranks=2)
def a_ddp_hook_reduces_before_its_stream_has_divided(repaired: bool) -> None:
    """The wait for the division comes when the collective has been given to its stream."""
    model = DistributedDataParallel(linear())
    side = side_stream()

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        side.wait_stream(current())
        with torch.vdev.stream(side):
            buffer.div_(2)  # first
        if repaired:
            current().wait_stream(side)
        work = dist.all_reduce(buffer, async_op=True)  # second
        current().wait_stream(side)
        return work.get_future().then(first_value)

    model.register_comm_hook(None, hook)
    model(zeros(4, 16)).sum().backward()
    torch.accelerator.synchronize()


@racing("read after write", r"wait\(\)|must wait for", ranks=2)
def a_gradient_hook_reduces_and_nobody_waits(repaired: bool) -> None:
    """Data parallelism by hand: the optimizer steps before the gradient's sum is there."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    works = []

    def reduce(parameter: torch.Tensor) -> None:
        works.append(dist.all_reduce(parameter.grad, async_op=True))  # first

    model.weight.register_post_accumulate_grad_hook(reduce)
    model(zeros(4, 16)).sum().backward()
    if repaired:
        works[0].wait()
    optimizer.step()  # second
    works[0].wait()


@racing("read after write", r"wait_stream|must wait for", ranks=2)
def gathered_weights_are_used_on_the_stream_of_the_computation(repaired: bool) -> None:
    """As in FSDP: a gather on a stream of its own, whose event the computation has to wait for."""
    shard, full = zeros(8, 16), zeros(16, 16)
    gather = side_stream()
    with torch.vdev.stream(gather):
        all_gather_single(full, shard)  # first
        done = gather.record_event()
    if repaired:
        current().wait_event(done)
    zeros(4, 16).mm(full)  # second


@racing("write after read", r"wait_stream|must wait for", ranks=2)
def the_next_gather_overwrites_weights_that_are_used(repaired: bool) -> None:
    """A prefetch into the buffer of the layer before, without a wait for that layer's computation."""
    shard, full = zeros(8, 16), zeros(16, 16)
    batch = zeros(4, 16)
    gather = side_stream()
    batch.mm(full)  # first
    if repaired:
        gather.wait_stream(current())
    with torch.vdev.stream(gather):
        all_gather_single(full, shard)  # second


@racing("read after write", r"wait_stream|must wait for", ranks=2)
def a_reduce_scatter_does_not_wait_for_the_backward(repaired: bool) -> None:
    model, shard = linear(), zeros(8, 16)
    scatter = side_stream()
    model(zeros(4, 16)).sum().backward()  # first
    if repaired:
        scatter.wait_stream(current())
    with torch.vdev.stream(scatter):
        reduce_scatter_single(shard, model.weight.grad)  # second
    torch.accelerator.synchronize()


@racing("read after write", r"the host must wait for|synchronize\(\)", ranks=2)
def a_loss_is_logged_too_early(repaired: bool) -> None:
    loss, host = zeros(1), pinned(1)
    dist.all_reduce(loss)
    host.copy_(loss, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.item()  # second


@racing("write after read", r"wait\(\)|must wait for", ranks=2)
def an_average_of_weights_is_made_during_the_next_step(repaired: bool) -> None:
    """Local SGD: the weights are gathered in the background, while the next step changes them."""
    model, out = linear(), zeros(32, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.grad = zeros(16, 16)
    work = all_gather_single(out, model.weight.detach(), async_op=True)  # first
    if repaired:
        work.wait()
    optimizer.step()  # second
    work.wait()
