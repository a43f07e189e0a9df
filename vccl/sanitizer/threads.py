"""Tells the detector how Python's threads are ordered.

A thread's start and join, queues, events and locks order what threads do. That only one of them runs at a
time, because of the interpreter's lock, orders nothing. A lock is followed if it was made after the sanitizer
was switched on.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections import deque
from typing import Any

from vccl import _C

_plain_lock = threading.Lock
_plain_rlock = threading.RLock


@functools.cache
def install() -> None:
    """Puts the orders into the classes of Python's library. Further calls do nothing."""
    _order_threads()
    _order_events()
    _order_queues()
    threading.Lock = _Lock  # type: ignore[assignment]
    threading.RLock = _RLock  # type: ignore[assignment]


class _Order:
    """What comes before whoever looks next at a lock or an event."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points = _C._RaceOrder()

    def release(self) -> None:
        if _C._races_on():
            self._points.release()

    def acquire(self) -> None:
        if _C._races_on():
            self._points.acquire()


class _Lock:
    """A lock that orders what its holders do."""

    def __init__(self) -> None:
        self._lock: Any = self._make()
        self._order = _Order()

    _make: Any = staticmethod(_plain_lock)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._order.acquire()
        return bool(taken)

    def release(self) -> None:
        self._order.release()
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)  # locked(), _at_fork_reinit()


class _RLock(_Lock):
    """A lock that its holder may take again."""

    _make = staticmethod(_plain_rlock)

    # threading.Condition calls these.
    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> Any:
        self._order.release()
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._lock._acquire_restore(state)
        self._order.acquire()


def _order_threads() -> None:
    start, bootstrap, join = (
        threading.Thread.start,
        threading.Thread._bootstrap_inner,  # type: ignore[attr-defined]
        threading.Thread.join,
    )

    @functools.wraps(start)
    def started(self: Any) -> None:
        self._vccl_start = _C._races_point()
        start(self)

    @functools.wraps(bootstrap)
    def run(self: Any) -> None:
        _C._races_begin_thread(self._vccl_start, self.name)
        try:
            bootstrap(self)
        finally:
            self._vccl_end = _C._races_end_thread()

    @functools.wraps(join)
    def joined(self: Any, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive() and (end := getattr(self, "_vccl_end", None)):
            _C._races_wait(end)

    threading.Thread.start = started  # type: ignore[method-assign]
    threading.Thread._bootstrap_inner = run  # type: ignore[attr-defined]
    threading.Thread.join = joined  # type: ignore[method-assign]


def _order_events() -> None:
    # An event is made of a condition, whose lock may have been made before.
    make, is_set, wait = threading.Event.__init__, threading.Event.is_set, threading.Event.wait

    @functools.wraps(make)
    def made(self: Any) -> None:
        make(self)
        self._vccl_order = _Order()

    def _after(answer: bool, self: Any) -> bool:
        if answer and (order := getattr(self, "_vccl_order", None)):
            order.acquire()
        return answer

    threading.Event.__init__ = made  # type: ignore[method-assign]
    threading.Event.set = _releasing(threading.Event.set)  # type: ignore[method-assign]
    threading.Event.is_set = functools.wraps(is_set)(lambda self: _after(is_set(self), self))  # type: ignore[method-assign]
    threading.Event.wait = functools.wraps(wait)(  # type: ignore[method-assign]
        lambda self, timeout=None: _after(wait(self, timeout), self)
    )


def _order_queues() -> None:
    """Orders each put before the get of the same item, and no other: the rest depends on the timing."""
    make, put, get = queue.Queue.__init__, queue.Queue._put, queue.Queue._get

    @functools.wraps(make)
    def made(self: Any, maxsize: int = 0) -> None:
        make(self, maxsize)
        # A lock that is followed would order more than the program can rely on.
        self.mutex = _plain_lock()
        self.not_empty = threading.Condition(self.mutex)
        self.not_full = threading.Condition(self.mutex)
        self.all_tasks_done = threading.Condition(self.mutex)
        self._vccl_points = deque()
        self._vccl_order = _Order()

    @functools.wraps(put)
    def was_put(self: Any, item: Any) -> None:
        if hasattr(self, "_vccl_points"):
            self._vccl_points.append(_C._races_point())
        put(self, item)

    @functools.wraps(get)
    def was_got(self: Any) -> Any:
        if hasattr(self, "_vccl_points") and self._vccl_points:
            _C._races_wait(self._vccl_points.popleft())
        return get(self)

    queue.Queue.__init__ = made  # type: ignore[method-assign]
    queue.Queue._put = was_put  # type: ignore[method-assign]
    queue.Queue._get = was_got  # type: ignore[method-assign]
    # The items of these are not taken in the order in which they are put.
    for other in (queue.LifoQueue, queue.PriorityQueue):
        other._put = _releasing(other._put)  # type: ignore[method-assign]
        other._get = _acquiring(other._get)  # type: ignore[method-assign]
    queue.Queue.task_done = _releasing(queue.Queue.task_done)  # type: ignore[method-assign]
    queue.Queue.join = _acquiring(queue.Queue.join)  # type: ignore[method-assign]
    queue.SimpleQueue = _SimpleQueue  # type: ignore[misc]


def _releasing(method: Any) -> Any:
    @functools.wraps(method)
    def releasing(self: Any, *arguments: Any) -> Any:
        if order := getattr(self, "_vccl_order", None):
            order.release()
        return method(self, *arguments)

    return releasing


def _acquiring(method: Any) -> Any:
    @functools.wraps(method)
    def acquiring(self: Any, *arguments: Any) -> Any:
        result = method(self, *arguments)
        if order := getattr(self, "_vccl_order", None):
            order.acquire()
        return result

    return acquiring


class _SimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined]
    """A queue that orders each put before the get of the same item."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put((item, _C._races_point()), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item, point = super().get(block, timeout)
        _C._races_wait(point)
        return item
