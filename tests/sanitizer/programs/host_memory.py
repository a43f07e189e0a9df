"""The host's memory of copies that are not blocking: read too early, refilled too early."""

import io

import torch
from pairs import current, pinned, racing, side_stream, zeros

OF_HOST = r"the host must wait for .*synchronize\(\)"


@racing("read after write", OF_HOST)
def a_pinned_copy_is_read_too_early(repaired: bool) -> None:
    x, host = zeros(), pinned()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.sum()  # second


@racing("read after write", OF_HOST)
def the_result_of_a_non_blocking_to_cpu_is_read_too_early(repaired: bool) -> None:
    x = zeros()
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        torch.accelerator.synchronize()
    host.add(1)  # second


@racing("read after write", OF_HOST)
def a_non_blocking_copy_to_pageable_memory_is_read_too_early(repaired: bool) -> None:
    x, host = zeros(), torch.zeros(256)
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.sum()  # second


@racing("read after write", r"wait_stream")
def a_blocking_copy_from_pinned_memory_is_on_another_stream(repaired: bool) -> None:
    """A stream reads pinned memory, even if the host then waits for the copy."""
    x, y, host = zeros(), zeros(), pinned()
    side = side_stream()
    host.copy_(x, non_blocking=True)  # first
    with torch.vdev.stream(current() if repaired else side):
        y.copy_(host)  # second


@racing("read after write", OF_HOST)
def numpy_is_taken_too_early(repaired: bool) -> None:
    x = zeros()
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        current().record_event().synchronize()
    host.numpy()  # second


@racing("read after write", OF_HOST)
def a_list_is_made_too_early(repaired: bool) -> None:
    x = zeros(8)
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.tolist()  # second


@racing("read after write", OF_HOST)
def one_element_is_read_too_early(repaired: bool) -> None:
    losses = zeros(8)
    host = losses.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host[3].item()  # second


@racing("read after write", OF_HOST)
def only_another_stream_is_synchronised_before_the_host_reads(repaired: bool) -> None:
    x, host = zeros(), pinned()
    side = side_stream()
    with torch.vdev.stream(side):
        host.copy_(x, non_blocking=True)  # first
    (side if repaired else current()).synchronize()
    host.sum()  # second


@racing("write after read", OF_HOST)
def a_pinned_buffer_is_refilled_too_early(repaired: bool) -> None:
    host, x = pinned(), zeros()
    x.copy_(host, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.fill_(2)  # second


@racing("write after read", OF_HOST)
def a_batch_is_collated_into_a_pinned_buffer_too_early(repaired: bool) -> None:
    samples = [torch.ones(64) for _ in range(4)]
    host = pinned().view(4, 64)
    torch.stack(samples, out=host)
    host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    torch.stack(samples, out=host)  # second


@racing("write after write", OF_HOST)
def the_host_writes_where_a_copy_still_writes(repaired: bool) -> None:
    x, host = zeros(), pinned()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.zero_()  # second


@racing("write after read", OF_HOST)
def double_buffers_are_refilled_one_step_too_early(repaired: bool) -> None:
    """Two buffers and two events, but the host waits for the event of the other buffer."""
    buffers, events = [pinned(), pinned()], [torch.vdev.Event(), torch.vdev.Event()]
    with torch.vdev.stream(side_stream()):
        buffers[1].to("vdev", non_blocking=True)
        events[1].record()
        buffers[0].to("vdev", non_blocking=True)  # first
        events[0].record()
    events[0 if repaired else 1].synchronize()
    buffers[0].fill_(1)  # second


@racing("read after write", r"wait_stream")
def a_pinned_buffer_goes_from_one_stream_to_another(repaired: bool) -> None:
    """A bounce over the host: the upload does not wait for the download."""
    x, y, bounce = zeros(), zeros(), pinned()
    down, up = side_stream(), side_stream()
    with torch.vdev.stream(down):
        bounce.copy_(x, non_blocking=True)  # first
    if repaired:
        up.wait_stream(down)
    with torch.vdev.stream(up):
        y.copy_(bounce, non_blocking=True)  # second


@racing("write after write", r"wait_stream")
def two_streams_write_one_pinned_buffer(repaired: bool) -> None:
    x, y, host = zeros(), zeros(), pinned()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        host.copy_(x, non_blocking=True)  # first
    if repaired:
        other.wait_stream(one)
    with torch.vdev.stream(other):
        host.copy_(y, non_blocking=True)  # second
    torch.accelerator.synchronize()


@racing("read after write", OF_HOST)
def the_half_that_is_copied_last_is_read_too_early(repaired: bool) -> None:
    """The repaired form reads the half for which the host has waited."""
    x, host = zeros(), pinned()
    host[:128].copy_(x[:128], non_blocking=True)
    done = current().record_event()
    host[128:].copy_(x[128:], non_blocking=True)  # first
    done.synchronize()
    part = host[:128] if repaired else host[100:200]
    part.sum()  # second


@racing("write after read", OF_HOST)
def a_blocking_copy_refills_what_a_stream_reads(repaired: bool) -> None:
    """A blocking copy between CPU tensors waits for no card."""
    host, fresh = pinned(), torch.ones(256)
    host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.copy_(fresh)  # second


@racing("read after write", OF_HOST)
def offloaded_gradients_are_used_by_a_cpu_optimizer(repaired: bool) -> None:
    weight = torch.nn.Parameter(torch.zeros(256))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    gradient = zeros()
    weight.grad = gradient.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    optimizer.step()  # second


@racing("write after read", r"must wait for|synchronize\(\)")
def a_source_on_the_card_is_changed_during_a_download(repaired: bool) -> None:
    x, host = zeros(), pinned()
    side = side_stream()
    with torch.vdev.stream(side):
        host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().wait_stream(side)
    x.add_(1)  # second
    torch.accelerator.synchronize()


@racing("read after write", OF_HOST)
def downloaded_states_are_saved_too_early(repaired: bool) -> None:
    """A checkpoint of copies that are not blocking. torch.save() calls no operator for a CPU tensor."""
    weight = zeros()
    state = {"weight": weight.to("cpu", non_blocking=True)}  # first
    if repaired:
        torch.accelerator.synchronize()
    torch.save(state, io.BytesIO())  # second
    torch.accelerator.synchronize()


def coo() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(8)[None], torch.ones(8), (9,), check_invariants=False)


def csr() -> torch.Tensor:
    return torch.ones(4, 4).to_sparse_csr()


def nested() -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])


@racing("read after write", OF_HOST)
def a_sparse_tensor_is_read_too_early(repaired: bool) -> None:
    sparse = coo().to("vdev")
    host = sparse.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.mul(2)  # second


@racing("write after read", OF_HOST)
def a_pinned_sparse_tensor_is_changed_too_early(repaired: bool) -> None:
    host = coo().pin_memory()
    sparse = host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.mul_(2)  # second
    sparse.to_dense()


@racing("read after write", OF_HOST)
def a_compressed_sparse_tensor_is_read_too_early(repaired: bool) -> None:
    sparse = csr().to("vdev")
    host = sparse.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    # A product would follow indices that have not arrived, and could end the process.
    host.mul(2)  # second


@racing("read after write", OF_HOST)
def a_nested_tensor_is_read_too_early(repaired: bool) -> None:
    parts = nested().to("vdev")
    host = parts.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.mul(2)  # second
