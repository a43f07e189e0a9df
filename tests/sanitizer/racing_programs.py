"""Threads, graphs, autograd and host functions."""

import queue
import threading

import torch
from racing import (
    READ_AFTER_WRITE,
    WRITE_AFTER_READ,
    WRITE_AFTER_WRITE,
    Programs,
    branch_stream,
    current,
    wait_until,
)

PROGRAMS = Programs()
racing = PROGRAMS.racing


def in_thread(body):
    thread = threading.Thread(target=body)
    thread.start()
    return thread


@racing(READ_AFTER_WRITE)
def thread_uses_a_stream_of_its_own(repaired):
    x = torch.ones(8, device="vdev")  # first

    def body():
        side = torch.vdev.Stream()
        if repaired:
            side.wait_stream(torch.vdev.default_stream())
        with torch.vdev.stream(side):
            x.sum()  # second

    in_thread(body).join()


@racing(READ_AFTER_WRITE)
def thread_has_synchronised_and_nobody_has_joined_it(repaired):
    x, side = torch.empty(8, device="vdev"), torch.vdev.Stream()
    told = []

    def body():
        with torch.vdev.stream(side):
            x.fill_(1)  # first
        side.synchronize()
        told.append(True)

    thread = in_thread(body)
    if repaired:
        thread.join()
    wait_until(lambda: told)
    x.sum()  # second
    thread.join()


@racing(READ_AFTER_WRITE)
def queue_hands_over_a_tensor_without_its_stream(repaired):
    tensors: queue.Queue = queue.Queue()

    def body():
        side = torch.vdev.Stream()
        with torch.vdev.stream(side):
            tensors.put(torch.ones(8, device="vdev"))  # first
        if repaired:
            side.synchronize()
        tensors.put(None)

    thread = in_thread(body)
    x = tensors.get()
    tensors.get()
    x.sum()  # second
    thread.join()


@racing(READ_AFTER_WRITE)
def queue_orders_only_what_was_before_the_put(repaired):
    tokens: queue.Queue = queue.Queue()
    x = torch.empty(8, device="vdev")

    def body():
        side = torch.vdev.Stream()
        if not repaired:
            tokens.put("early")
        with torch.vdev.stream(side):
            x.fill_(1)  # first
        side.synchronize()
        if repaired:
            tokens.put("late")
        told.append(True)

    told: list[bool] = []
    thread = in_thread(body)
    wait_until(lambda: told)
    tokens.get()
    x.sum()  # second
    thread.join()


@racing(READ_AFTER_WRITE)
def event_of_python_is_set_before_the_wait_for_the_stream(repaired):
    ready, finished = threading.Event(), []
    x = torch.empty(8, device="vdev")

    def body():
        side = torch.vdev.Stream()
        with torch.vdev.stream(side):
            x.fill_(1)  # first
        if not repaired:
            ready.set()
        side.synchronize()
        if repaired:
            ready.set()
        finished.append(True)

    thread = in_thread(body)
    wait_until(lambda: finished)
    ready.wait()
    x.sum()  # second
    thread.join()


@racing(READ_AFTER_WRITE)
def lock_is_not_taken(repaired):
    lock, finished = threading.Lock(), []
    x = torch.empty(8, device="vdev")

    def body():
        side = torch.vdev.Stream()
        with lock:
            with torch.vdev.stream(side):
                x.fill_(1)  # first
            side.synchronize()
        finished.append(True)

    thread = in_thread(body)
    wait_until(lambda: finished)
    if repaired:
        with lock:
            pass
    x.sum()  # second
    thread.join()


@racing(WRITE_AFTER_READ)
def replay_reads_what_is_overwritten(repaired):
    x, side, graph = torch.ones(8, device="vdev"), torch.vdev.Stream(), torch.vdev.VDEVGraph()
    torch.accelerator.synchronize()
    with torch.vdev.graph(graph):
        x + 1
    side.wait_stream(current())
    with torch.vdev.stream(side):
        graph.replay()  # first
    if repaired:
        current().wait_stream(side)
    x.zero_()  # second


@racing(READ_AFTER_WRITE)
def result_of_a_replay_is_read_too_early(repaired):
    x, side, graph = torch.ones(8, device="vdev"), torch.vdev.Stream(), torch.vdev.VDEVGraph()
    torch.accelerator.synchronize()
    with torch.vdev.graph(graph):
        y = x + 1
    with torch.vdev.stream(side):
        graph.replay()  # first
    if repaired:
        current().wait_stream(side)
    y.sum()  # second


@racing(READ_AFTER_WRITE)
def static_input_is_filled_on_another_stream(repaired):
    x, side, graph = torch.ones(8, device="vdev"), torch.vdev.Stream(), torch.vdev.VDEVGraph()
    torch.accelerator.synchronize()
    with torch.vdev.graph(graph):
        x + 1
    with torch.vdev.stream(side):
        x.fill_(2)  # first
    if repaired:
        current().wait_stream(side)
    graph.replay()  # second


@racing(READ_AFTER_WRITE)
def branches_of_a_capture_are_not_ordered(repaired):
    x, graph = torch.ones(8, device="vdev"), torch.vdev.VDEVGraph()
    torch.accelerator.synchronize()
    with torch.vdev.graph(graph):
        side = branch_stream()
        side.wait_stream(current())
        y = x + 1  # first
        if repaired:
            side.wait_stream(current())
        with torch.vdev.stream(side):
            y.sum()  # second
        current().wait_stream(side)


@racing(READ_AFTER_WRITE)
def gradients_are_read_on_another_stream(repaired):
    weight, side = torch.ones(4, device="vdev", requires_grad=True), torch.vdev.Stream()
    (weight * 2).sum().backward()  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        weight.grad.sum()  # second


@racing(READ_AFTER_WRITE)
def hook_waits_for_the_wrong_stream(repaired):
    weight = torch.ones(4, device="vdev", requires_grad=True)
    side, other = torch.vdev.Stream(), torch.vdev.Stream()
    torch.accelerator.synchronize()

    def hook(gradient):
        side.wait_stream(current() if repaired else other)
        with torch.vdev.stream(side):
            gradient.sum()  # second
        current().wait_stream(side)

    weight.register_hook(hook)
    (weight * 2).sum().backward()  # first


@racing(WRITE_AFTER_WRITE)
def optimizer_on_a_side_stream(repaired):
    weight, side = torch.ones(4, device="vdev", requires_grad=True), torch.vdev.Stream()
    weight.grad = torch.ones(4, device="vdev")
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=False, foreach=False)
    side.wait_stream(current())
    with torch.vdev.stream(side), torch.no_grad():
        weight.mul_(2)  # first
    if repaired:
        current().wait_stream(side)
    optimizer.step()  # second
