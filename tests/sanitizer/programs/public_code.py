"""Races that the sanitizer has found in released public code, made small. docs/sanitizer.md lists them."""

import torch
from pairs import LARGE, current, pinned, racing
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
