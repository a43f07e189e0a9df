"""Streams of one process: waits that are missing, that point the wrong way, or that name the wrong stream."""

import torch
from pairs import current, pinned, quietly, racing, side_stream, zeros


@racing("read after write", r"default_stream\(0\)`?.*wait_stream|default stream.* must wait for stream")
def the_current_stream_reads_what_a_side_stream_writes(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"stream \d+ .*must wait for the default stream")
def a_side_stream_reads_what_the_current_stream_writes(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    x.add_(1)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # second


@racing("write after read", r"wait_stream")
def the_current_stream_overwrites_what_a_side_stream_reads(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        current().wait_stream(side)
    x.zero_()  # second


@racing("write after write", r"wait_stream")
def two_streams_write(repaired: bool) -> None:
    x = zeros()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    if repaired:
        other.wait_stream(one)
    with torch.vdev.stream(other):
        x.fill_(2)  # second


@racing("read after write", r"wait_stream")
def the_wait_points_the_wrong_way(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.mul_(2)  # first
    if repaired:
        current().wait_stream(side)
    else:
        side.wait_stream(current())
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_wait_comes_before_the_work(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    if not repaired:
        current().wait_stream(side)
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def one_of_three_streams_is_left_out(repaired: bool) -> None:
    """The last stream waits for the middle one, which has not waited for the first."""
    x = zeros()
    first, middle, last = side_stream(), side_stream(), side_stream()
    with torch.vdev.stream(first):
        x.add_(1)  # first
    if repaired:
        middle.wait_stream(first)
    last.wait_stream(middle)
    with torch.vdev.stream(last):
        x.sum()  # second


@racing("read after write", r"wait_stream")
def a_chain_of_waits_is_made_in_the_wrong_order(repaired: bool) -> None:
    """A wait is for what the other stream holds now, not for what it will wait for later."""
    x = zeros()
    first, middle, last = side_stream(), side_stream(), side_stream()
    with torch.vdev.stream(first):
        x.add_(1)  # first
    if repaired:
        middle.wait_stream(first)
    last.wait_stream(middle)
    middle.wait_stream(first)
    with torch.vdev.stream(last):
        x.sum()  # second


@racing("write after read", r"wait_stream")
def only_one_of_two_readers_is_waited_for(repaired: bool) -> None:
    x = zeros()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.sum()
    with torch.vdev.stream(other):
        x.mean()  # first
    current().wait_stream(one)
    if repaired:
        current().wait_stream(other)
    x.zero_()  # second


@racing("read after write", r"wait_stream")
def the_host_waits_for_the_wrong_stream(repaired: bool) -> None:
    x = zeros()
    writer, other, reader = side_stream(), side_stream(), side_stream()
    with torch.vdev.stream(writer):
        x.add_(1)  # first
    (writer if repaired else other).synchronize()
    with torch.vdev.stream(reader):
        x.sum()  # second


@racing("read after write", r"wait_stream")
def the_host_waits_before_the_work_is_given(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    if not repaired:
        torch.accelerator.synchronize()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        torch.accelerator.synchronize()
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_wrong_card_is_synchronised(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    torch.vdev.synchronize(0 if repaired else 1)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def item_reads_what_a_side_stream_writes(repaired: bool) -> None:
    """item() waits for the current stream alone."""
    x = zeros(1)
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.item()  # second


@racing("read after write", r"wait_stream")
def a_blocking_copy_reads_what_a_side_stream_writes(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        side.synchronize()
    x.cpu()  # second


@racing("read after write", r"wait_stream")
def item_on_another_stream_is_taken_for_a_wait(repaired: bool) -> None:
    """item() of a result of the current stream says nothing about the side stream."""
    x, loss = zeros(), zeros(1)
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
        if repaired:
            loss.item()
    loss.item()
    x.sum()  # second


@racing("read after write", r"wait_stream")
def a_tensor_that_is_made_on_a_side_stream_is_used_at_once(repaired: bool) -> None:
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        x = torch.ones(64, device="vdev")  # first
    if repaired:
        current().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def a_wait_is_done_on_another_cards_stream(repaired: bool) -> None:
    """current_stream() belongs to the card that is current, not to the card that reads."""
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    with torch.vdev.device(0 if repaired else 1):
        torch.vdev.current_stream().wait_stream(side)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def a_copy_between_cards_does_not_wait_for_a_side_stream(repaired: bool) -> None:
    """The copy waits for the current streams of both cards only."""
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.to("vdev:1")  # second


@racing("write after read", r"wait_stream")
def the_source_of_a_copy_between_cards_is_overwritten(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        y = x.to("vdev:1")  # first
    if repaired:
        torch.vdev.current_stream(0).wait_stream(torch.vdev.current_stream(1))
    x.zero_()  # second
    y.sum()


@racing("write after write", r"wait_stream")
def a_copy_between_cards_overwrites_what_a_side_stream_of_the_target_writes(repaired: bool) -> None:
    x, y = zeros(), torch.zeros(256, device="vdev:1")
    side = torch.vdev.Stream(device=1)
    side.wait_stream(torch.vdev.current_stream(1))
    with torch.vdev.stream(side):
        y.add_(1)  # first
    if repaired:
        torch.vdev.current_stream(1).wait_stream(side)
    y.copy_(x)  # second


@racing("read after write", r"wait_stream")
@quietly
def a_stream_that_stays_current_is_forgotten(repaired: bool) -> None:
    x = zeros()
    torch.vdev.set_stream(side_stream())
    x.add_(1)  # first
    worker = current()
    torch.vdev.set_stream(torch.vdev.default_stream())
    if repaired:
        current().wait_stream(worker)
    x.sum()  # second


@racing("write after read", r"wait_stream")
def an_out_argument_overwrites_what_a_side_stream_reads(repaired: bool) -> None:
    x, y = zeros(), zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        y.add(1)  # first
    if repaired:
        current().wait_stream(side)
    torch.mul(x, 2, out=y)  # second


@racing("read after write", r"wait_stream")
def one_tensor_of_a_foreach_list_is_not_ready(repaired: bool) -> None:
    tensors = [zeros() for _ in range(4)]
    side = side_stream()
    with torch.vdev.stream(side):
        tensors[2].add_(1)  # first
    if repaired:
        current().wait_stream(side)
    torch._foreach_norm(tensors)  # second


@racing("read after write", r"wait_stream")
def a_fused_optimizer_steps_on_a_side_stream(repaired: bool) -> None:
    weight = torch.nn.Parameter(zeros(16, 16))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    weight.grad = zeros(16, 16)
    side = side_stream()
    with torch.vdev.stream(side):
        optimizer.step()  # first
    if repaired:
        current().wait_stream(side)
    weight.detach().sum()  # second


@racing("write after read", r"wait_stream")
def gradients_are_zeroed_while_the_optimizer_reads_them(repaired: bool) -> None:
    weight = torch.nn.Parameter(zeros(16, 16))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=True)
    weight.grad = zeros(16, 16)
    side = side_stream()
    with torch.vdev.stream(side):
        optimizer.step()  # first
    if repaired:
        current().wait_stream(side)
    optimizer.zero_grad(set_to_none=False)  # second


@racing("read after write", r"wait_stream")
def an_index_is_written_while_it_is_used(repaired: bool) -> None:
    x, index = zeros(), zeros(8, dtype=torch.int64)
    side = side_stream()
    with torch.vdev.stream(side):
        index.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.index_select(0, index)  # second


@racing("read after write", r"wait_stream")
def a_prefetcher_does_not_wait(repaired: bool) -> None:
    """The double-buffered prefetcher of a hundred training scripts, without the wait in next()."""
    batches = [pinned() for _ in range(2)]
    loader = torch.vdev.Stream()
    with torch.vdev.stream(loader):
        ready = [batch.to("vdev", non_blocking=True) for batch in batches]  # first
    if repaired:
        current().wait_stream(loader)
    for batch in ready:
        batch.square()  # second
        batch.record_stream(current())
