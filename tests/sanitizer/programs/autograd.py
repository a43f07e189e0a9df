"""Backward passes: what autograd orders by itself, and what is the program's business.

See "Stream semantics of backward passes" in PyTorch's notes on CUDA. Each backward operator runs on the
stream of its forward operator. backward() orders them behind the stream that is current at its call, and
puts that stream behind the streams of the leaves. Another stream than that has to wait by itself.
"""

import torch
from pairs import current, racing, side_stream, zeros


def weight_and_batch() -> tuple[torch.nn.Parameter, torch.Tensor]:
    return torch.nn.Parameter(zeros(16, 16)), zeros(4, 16)


@racing("read after write", r"wait_stream")
def gradients_of_a_side_stream_are_read_on_the_default_one(repaired: bool) -> None:
    weight, batch = weight_and_batch()
    side = side_stream()
    with torch.vdev.stream(side):
        loss = (batch @ weight).sum()
        loss.backward()  # first
    if repaired:
        current().wait_stream(side)
    weight.grad.sum()  # second


@racing("read after write", r"wait_stream")
def the_first_gradient_is_made_on_another_stream(repaired: bool) -> None:
    weight, batch = weight_and_batch()
    output, gradient = batch @ weight, zeros(4, 16)
    side = side_stream()
    with torch.vdev.stream(side):
        gradient.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    output.backward(gradient)  # second


@racing("read after write", r"wait_stream")
def a_saved_tensor_is_overwritten_behind_autograds_back(repaired: bool) -> None:
    weight, batch = weight_and_batch()
    output = (batch @ weight).sum()
    side = side_stream()
    with torch.vdev.stream(side):
        batch.data.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    output.backward()  # second


@racing("read after write", r"wait_stream")
def a_hook_copies_gradients_on_its_own_stream(repaired: bool) -> None:
    """A hook that offloads a gradient as soon as it is there has to wait for the stream that made it."""
    weight, batch = weight_and_batch()
    side = side_stream()
    kept = []

    def offload(parameter: torch.Tensor) -> None:
        if repaired:
            side.wait_stream(current())
        with torch.vdev.stream(side):
            kept.append(parameter.grad.clone())  # second

    weight.register_post_accumulate_grad_hook(offload)
    loss = (batch @ weight).sum()
    loss.backward()  # first
    torch.accelerator.synchronize()


@racing("write after read", r"wait_stream")
def weights_are_stepped_while_a_side_stream_reads_them(repaired: bool) -> None:
    """A forward pass for evaluation on a side stream, beside the optimizer's step."""
    weight, batch = weight_and_batch()
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = zeros(16, 16)
    side = side_stream()
    with torch.vdev.stream(side), torch.no_grad():
        batch.mm(weight)  # first
    if repaired:
        current().wait_stream(side)
    optimizer.step()  # second


@racing("read after write", r"wait_stream")
def a_forward_pass_of_two_streams_is_not_joined(repaired: bool) -> None:
    left, right = weight_and_batch()[0], weight_and_batch()[0]
    batch = zeros(4, 16)
    side = side_stream()
    with torch.vdev.stream(side):
        half = batch @ left  # first
    other = batch @ right
    if repaired:
        current().wait_stream(side)
    torch.add(half, other)  # second


@racing("read after write", r"wait_stream")
def clipping_reads_gradients_of_another_stream(repaired: bool) -> None:
    weight, batch = weight_and_batch()
    trainer = side_stream()
    with torch.vdev.stream(trainer):
        (batch @ weight).sum().backward()  # first
    if repaired:
        current().wait_stream(trainer)
    torch.nn.utils.get_total_norm([weight.grad])  # second
