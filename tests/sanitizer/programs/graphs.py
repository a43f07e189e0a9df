"""Graphs: replays against operators on other streams, and branches within a capture."""

import torch
from pairs import current, pinned, racing, side_stream, zeros
from racing import branch_stream


def doubling(x: torch.Tensor, y: torch.Tensor) -> torch.vdev.VDEVGraph:
    """Returns a graph that writes twice x to y."""
    torch.mul(x, 2, out=y)
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        torch.mul(x, 2, out=y)
    torch.accelerator.synchronize()
    return graph


@racing("read after write", r"wait_stream")
def a_replay_reads_what_a_side_stream_writes(repaired: bool) -> None:
    x, y = zeros(), zeros()
    graph, side = doubling(x, y), side_stream()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    graph.replay()  # second


@racing("read after write", r"wait_stream")
def a_side_stream_reads_what_a_replay_writes(repaired: bool) -> None:
    x, y = zeros(), zeros()
    graph, side = doubling(x, y), side_stream()
    graph.replay()  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        y.sum()  # second


@racing("write after read", r"wait_stream")
def the_input_of_a_replay_is_refilled_too_early(repaired: bool) -> None:
    x, y = zeros(), zeros()
    graph, side = doubling(x, y), side_stream()
    graph.replay()  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.fill_(3)  # second


@racing("write after write", r"wait_stream")
def two_graphs_write_the_same_memory_on_two_streams(repaired: bool) -> None:
    """Replays of one graph are in order, and those of two graphs are not."""
    x, y = zeros(), zeros()
    graph, again = doubling(x, y), doubling(x, y)
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        graph.replay()  # first
    if repaired:
        other.wait_stream(one)
    with torch.vdev.stream(other):
        again.replay()  # second


@racing("write after read", r"synchronize\(\)")
def the_host_refills_what_a_replay_uploads(repaired: bool) -> None:
    host, x = pinned(), zeros()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        x.copy_(host, non_blocking=True)
    graph.replay()  # first
    if repaired:
        current().synchronize()
    host.fill_(1)  # second
    torch.accelerator.synchronize()


@racing("read after write", r"synchronize\(\)")
def the_host_reads_what_a_replay_downloads(repaired: bool) -> None:
    host, x = pinned(), zeros()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        host.copy_(x, non_blocking=True)
    graph.replay()  # first
    if repaired:
        current().synchronize()
    host.sum()  # second
    torch.accelerator.synchronize()


@racing("read after write", r"wait_stream|must wait")
def branches_of_a_capture_are_not_ordered(repaired: bool) -> None:
    x, y = zeros(), zeros()
    torch.accelerator.synchronize()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        branch = branch_stream()
        branch.wait_stream(current())
        with torch.vdev.stream(branch):
            x.add_(1)  # first
        if repaired:
            current().wait_stream(branch)
        torch.mul(x, 2, out=y)  # second
        current().wait_stream(branch)


@racing("read after write", r"wait_stream")
def the_replay_is_on_another_stream_than_the_waits(repaired: bool) -> None:
    x, y = zeros(), zeros()
    graph, side, loader = doubling(x, y), side_stream(), side_stream()
    with torch.vdev.stream(loader):
        x.fill_(1)  # first
    current().wait_stream(loader)
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        graph.replay()  # second
