"""Memory that is freed while another stream uses it, and is given out again."""

import torch
from pairs import LARGE, current, racing, side_stream

RECORD = r"record_stream"


def large() -> torch.Tensor:
    return torch.zeros(LARGE, device="vdev")


@racing("use after free", RECORD)
def memory_is_freed_while_a_side_stream_reads_it(repaired: bool) -> None:
    x = large()
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        x.record_stream(side)
    del x
    torch.zeros(LARGE, device="vdev")  # second


@racing("use after free", RECORD)
def memory_is_freed_while_a_side_stream_writes_it(repaired: bool) -> None:
    x = large()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        current().wait_stream(side)
    del x
    torch.ones(LARGE, device="vdev")  # second


@racing("write after write", r"wait_stream")
def new_memory_is_used_on_a_stream_that_does_not_wait(repaired: bool) -> None:
    """The stream of the memory may have used it before, in a tensor that is gone or inside of an operator."""
    x, side = large(), torch.vdev.Stream()
    del x
    y = torch.empty(LARGE, device="vdev")  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        y.fill_(1)  # second
    current().wait_stream(side)


@racing("write after write", r"wait_stream")
def new_memory_is_used_on_a_stream_that_has_waited_too_early(repaired: bool) -> None:
    """The memory's stream has waited for its last use after the other stream has waited for that stream."""
    x = large()
    reader, side = side_stream(), side_stream()
    with torch.vdev.stream(reader):
        x.sum()
    current().wait_stream(reader)
    del x
    y = torch.empty(LARGE, device="vdev")  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        y.fill_(1)  # second
    current().wait_stream(side)


@racing("use after free", RECORD)
def the_wrong_stream_is_recorded(repaired: bool) -> None:
    x = large()
    side, other = side_stream(), side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    x.record_stream(side if repaired else other)
    del x
    other.synchronize()  # so that the memory is free for the allocator
    torch.zeros(LARGE, device="vdev")  # second


@racing("use after free", RECORD)
def a_tensor_of_a_side_stream_dies_on_the_current_one(repaired: bool) -> None:
    """The batch of a prefetcher belongs to the prefetcher's stream, which gets its memory back at once."""
    loader = torch.vdev.Stream()
    with torch.vdev.stream(loader):
        batch = large()
    current().wait_stream(loader)
    batch.sum()  # first
    if repaired:
        batch.record_stream(current())
    del batch
    with torch.vdev.stream(loader):
        torch.zeros(LARGE, device="vdev")  # second


@racing("use after free", RECORD)
def a_temporary_dies_at_the_end_of_the_line(repaired: bool) -> None:
    x = large()
    side = side_stream()
    y = x * 2
    side.wait_stream(current())
    with torch.vdev.stream(side):
        y.sum()  # first
    if repaired:
        y.record_stream(side)
    y = None
    torch.zeros(LARGE, device="vdev")  # second
    x.sum()


@racing("use after free", RECORD)
def the_side_stream_waits_for_the_wrong_direction_before_the_release(repaired: bool) -> None:
    """The side stream waits for the stream of the memory, which has to wait for the side stream."""
    x = large()
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        current().wait_stream(side)
    else:
        side.wait_stream(current())
    del x
    torch.zeros(LARGE, device="vdev")  # second


@racing("use after free", RECORD)
def a_storage_is_resized_to_nothing_while_it_is_read(repaired: bool) -> None:
    """As FSDP frees gathered parameters."""
    x = large()
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        current().wait_stream(side)
    x.untyped_storage().resize_(0)
    torch.zeros(LARGE, device="vdev")  # second


@racing("use after free", RECORD)
def gradients_are_dropped_while_they_are_copied(repaired: bool) -> None:
    weight = torch.nn.Parameter(torch.zeros(LARGE, device="vdev"))
    weight.grad = large()
    offload = side_stream()
    with torch.vdev.stream(offload):
        weight.grad.to("cpu", non_blocking=True)  # first
    if repaired:
        weight.grad.record_stream(offload)
    weight.grad = None
    torch.zeros(LARGE, device="vdev")  # second
    torch.accelerator.synchronize()


@racing("use after free", RECORD)
def work_after_the_wait_is_not_covered(repaired: bool) -> None:
    """The stream of the memory waits before the last kernel that reads it."""
    x = large()
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()
    if not repaired:
        current().wait_stream(side)
    with torch.vdev.stream(side):
        x.mean()  # first
    if repaired:
        current().wait_stream(side)
    del x
    torch.zeros(LARGE, device="vdev")  # second
