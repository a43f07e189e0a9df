"""Races that the sanitizer has found in released public code, made small. docs/sanitizer.md lists them."""

import torch
import torch.distributed as dist
from pairs import LARGE, current, pinned, racing, zeros
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@racing("read after write", r"wait_stream|must wait for", ranks=2)
def ddp_is_made_on_a_side_stream(repaired: bool) -> None:
    """Lightning's DDPStrategy: DDP gives the weights of the first rank to all on the stream on which it is
    made, and the first step reads them on another one."""
    module = nn.Linear(16, 16, bias=False).to("vdev")
    inputs = torch.ones(4, 16).to("vdev")
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        model = DistributedDataParallel(module)  # first
    if repaired:
        current().wait_stream(side)
    model(inputs)  # second
    torch.accelerator.synchronize()


@racing("use after free", r"record_stream")
def the_memory_of_a_prefetched_batch_is_given_out_again(repaired: bool) -> None:
    """The prefetchers of timm and BasicSR: the next batch but one gets the memory of a batch that the model
    still reads. A wait for the loader's stream protects only what is read after it."""
    loader, batch = torch.vdev.Stream(), None
    for source in [pinned(LARGE) for _ in range(3)]:
        if repaired:
            loader.wait_stream(current())
        with torch.vdev.stream(loader):
            upcoming = source.to("vdev", non_blocking=True)  # second
        if batch is not None:
            batch.square()  # first
        current().wait_stream(loader)
        batch = upcoming
    torch.accelerator.synchronize()


@racing("write after read", r"wait_stream|must wait for")
def a_gradient_is_added_to_while_it_is_offloaded(repaired: bool) -> None:
    """torchao's CPUOffloadOptimizer, when gradients are accumulated over several backward passes."""
    weight = nn.Parameter(torch.ones(256).to("vdev"))
    offloading, gradient = torch.vdev.Stream(), pinned()

    def offload(parameter: torch.Tensor) -> None:
        offloading.wait_stream(current())
        with torch.vdev.stream(offloading):
            gradient.copy_(parameter.grad, non_blocking=True)  # first

    weight.register_post_accumulate_grad_hook(offload)
    weight.sum().backward()
    if repaired:
        current().wait_stream(offloading)
    weight.sum().backward()  # second
    torch.accelerator.synchronize()


@racing("use after free", r"record_stream", ranks=2)
def a_callback_of_a_future_frees_what_its_stream_reads(repaired: bool) -> None:
    """torch's powerSGD_hook: the callback reads a copy of the gradient on a stream of its own, and the copy
    dies with the callback, before anybody has waited for that stream."""
    gradient, errors = zeros(LARGE), []

    def reduce() -> torch.futures.Future:
        copy = gradient.clone()

        def remember_error(future: torch.futures.Future) -> None:
            errors.append(copy - future.value()[0])  # first
            if repaired:
                copy.record_stream(current())

        return dist.all_reduce(gradient, async_op=True).get_future().then(remember_error)

    reduced = reduce()
    torch.ones(LARGE, device="vdev")  # second
    reduced.wait()
    torch.accelerator.synchronize()


@racing("write after write", r"wait_stream|must wait for", ranks=2)
def a_callback_of_a_future_steps_weights_that_are_moved(repaired: bool) -> None:
    """torch's hook_with_zero_step: weights go into a flat buffer when the reduction has been given to its
    stream already. The step, in the reduction's callback, is behind the reduction alone."""
    weight, start, gradient = zeros(), torch.ones(256).to("vdev"), zeros()

    def step(future: torch.futures.Future) -> None:
        weight.add_(future.value()[0])  # second

    if repaired:
        weight.copy_(start)
    reduced = dist.all_reduce(gradient, async_op=True).get_future()
    if not repaired:
        weight.copy_(start)  # first
    reduced.then(step).wait()
    torch.accelerator.synchronize()
