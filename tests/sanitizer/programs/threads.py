"""Threads of Python: what join, queues, events, locks and futures order, and a plain variable does not."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from pairs import pinned, racing, side_stream, wait_without_order, zeros

OF_STREAMS = r"must wait for stream"


def started(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@racing("read after write", OF_STREAMS)
def a_flag_orders_nothing(repaired: bool) -> None:
    """The other thread synchronises its stream, but nobody waits for the thread."""
    x, done, event = zeros(), [], threading.Event()
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.add_(1)  # first
        side.synchronize()
        done.append(True)
        event.set()

    thread = started(work)
    if repaired:
        event.wait()
    wait_without_order(done)
    x.sum()  # second
    thread.join()


@racing("read after write", OF_STREAMS)
def a_thread_is_joined_too_late(repaired: bool) -> None:
    x, done = zeros(), []
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.add_(1)  # first
        side.synchronize()
        done.append(True)

    thread = started(work)
    wait_without_order(done)
    if repaired:
        thread.join()
    x.sum()  # second
    thread.join()


@racing("read after write", OF_STREAMS)
def a_joined_thread_has_not_waited_for_its_stream(repaired: bool) -> None:
    """Joining a thread orders what the thread did, and not what its streams still do."""
    x = zeros()
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.add_(1)  # first
        if repaired:
            side.synchronize()

    started(work).join()
    x.sum()  # second


@racing("write after read", OF_STREAMS)
def a_queue_carries_a_tensor_whose_stream_nobody_waits_for(repaired: bool) -> None:
    items: queue.Queue = queue.Queue()
    x = zeros()
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.sum()  # first
        items.put(side.record_event())

    thread = started(work)
    event = items.get()
    if repaired:
        torch.vdev.current_stream().wait_event(event)
    x.zero_()  # second
    thread.join()


@racing("read after write", r"order the two|threads|must wait for")
def a_pinned_buffer_is_filled_by_a_thread(repaired: bool) -> None:
    """The thread fills the buffer on the host, and the main thread uploads it when a variable says so."""
    host, done, event = pinned(), [], threading.Event()
    host.to("vdev", non_blocking=True)
    torch.accelerator.synchronize()

    def work() -> None:
        host.fill_(1)  # first
        done.append(True)
        event.set()

    thread = started(work)
    wait_without_order(done)
    if repaired:
        event.wait()
    host.to("vdev", non_blocking=True)  # second
    thread.join()
    torch.accelerator.synchronize()


@racing("write after write", OF_STREAMS)
def one_of_two_threads_takes_no_lock(repaired: bool) -> None:
    lock, done = threading.Lock(), []
    x = zeros()
    one, other = side_stream(), side_stream()

    def work() -> None:
        with lock, torch.vdev.stream(one):
            x.fill_(1)  # first
            one.synchronize()
        done.append(True)

    thread = started(work)
    wait_without_order(done)
    if repaired:
        lock.acquire()
    with torch.vdev.stream(other):
        x.fill_(2)  # second
    thread.join()


@racing("read after write", OF_STREAMS)
def a_future_is_polled_and_not_asked_for_its_result(repaired: bool) -> None:
    x, done = zeros(), []
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.add_(1)  # first
        side.synchronize()
        done.append(True)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        wait_without_order(done)
        if repaired:
            future.result()
        x.sum()  # second


@racing("write after write", OF_STREAMS)
def two_threads_update_weights_like_hogwild(repaired: bool) -> None:
    """Each worker waits for its own stream. In the repaired form, the second begins when the first has
    ended."""
    x, done = zeros(), []
    one, other = side_stream(), side_stream()

    def first() -> None:
        with torch.vdev.stream(one):
            x.fill_(1)  # first
        one.synchronize()
        done.append(True)

    def second() -> None:
        wait_without_order(done)
        with torch.vdev.stream(other):
            x.fill_(2)  # second
        other.synchronize()

    if repaired:
        started(first).join()
        started(second).join()
    else:
        threads = [started(first), started(second)]
        for thread in threads:
            thread.join()


@racing("read after write", OF_STREAMS)
def a_thread_starts_before_the_work_that_it_needs(repaired: bool) -> None:
    """A thread's start orders what was done before it. The current stream is waited for in the wrong
    order."""
    x, go, event = zeros(), [], threading.Event()
    side = side_stream()

    def work() -> None:
        if repaired:
            event.wait()
        wait_without_order(go)
        with torch.vdev.stream(side):
            x.sum()  # second
        side.synchronize()

    thread = started(work)
    with torch.vdev.stream(own := side_stream()):
        x.fill_(1)  # first
    own.synchronize()
    go.append(True)
    event.set()
    thread.join()


@racing("write after read", OF_STREAMS)
def a_condition_is_notified_before_the_stream_is_waited_for(repaired: bool) -> None:
    condition, ready = threading.Condition(), []
    x = zeros()
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.sum()  # first
        if repaired:
            side.synchronize()
        with condition:
            ready.append(True)
            condition.notify()

    thread = started(work)
    with condition:
        assert condition.wait_for(lambda: ready, 60)
    x.zero_()  # second
    thread.join()
