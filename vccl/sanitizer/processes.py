"""Tells the detector how processes that share memory of cards are ordered.

What ``multiprocessing`` sends, its locks and events, the end of its processes, and the stores of
``torch.distributed`` order the hosts of processes: what one has waited for before it tells another something
comes before what the other does once it knows. Nothing is noted before a card's memory or an event is shared.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterable
from multiprocessing import connection, process, synchronize
from typing import Any

from vccl import _C

from . import endings

Channels = Callable[..., Iterable[str]]
"""Returns the names of the channels that a call of a method uses, from the call's arguments."""


@functools.cache
def install() -> None:
    """Puts the orders into the classes of Python's library and of torch. Further calls do nothing."""
    _order_connections()
    _order_semaphores()
    _order_processes()
    _order_stores()


def _telling(method: Any, channels: Channels) -> Any:
    """Returns a method after which other processes may know what this one has done."""

    @functools.wraps(method)
    def telling(*arguments: Any, **named: Any) -> Any:
        if _C._races_shares_memory():
            for channel in channels(*arguments, **named):
                _C._races_publish_host(channel, False)
        return method(*arguments, **named)

    return telling


def _learning(method: Any, channels: Channels) -> Any:
    """Returns a method after which this process may know what others have done."""

    @functools.wraps(method)
    def learning(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        # An acquire() or check() that has not found what it looked for returns False.
        if result is not False and _C._races_shares_memory():
            for channel in channels(*arguments, **named):
                _C._races_wait_for_hosts(channel)
        return result

    return learning


def _order_connections() -> None:
    def channel(self: Any, *_: Any, **__: Any) -> list[str]:
        status = os.fstat(self.fileno())
        # Both ends of a pipe are one file, and those of a pair of sockets are two.
        return [f"pipe {status.st_ino}" if stat.S_ISFIFO(status.st_mode) else "sockets"]

    its: Any = connection.Connection
    its._send_bytes = _telling(its._send_bytes, channel)
    its._recv_bytes = _learning(its._recv_bytes, channel)


def _order_semaphores() -> None:
    its: Any = synchronize.SemLock
    make = its._make_methods

    def channel(self: Any, *_: Any, **__: Any) -> list[str]:
        return [f"semaphore {self._semlock.name}"]

    @functools.wraps(make)
    def make_methods(self: Any) -> None:
        make(self)
        own = channel(self)
        self.acquire = _learning(self.acquire, lambda *_, **__: own)
        self.release = _telling(self.release, lambda *_, **__: own)

    its._make_methods = make_methods
    its.__enter__ = _learning(its.__enter__, channel)
    its.__exit__ = _telling(its.__exit__, channel)


def _order_processes() -> None:
    its: Any = process.BaseProcess
    bootstrap, join = its._bootstrap, its.join

    @functools.wraps(bootstrap)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            status = bootstrap(self, *arguments, **named)
        finally:
            if _C._races_shares_memory():
                _C._races_judge_shared()
                _C._races_publish_host(f"end of process {os.getpid()}", True)
        # A forked child ends without Python's end, which would give it this status.
        return endings.status_at_end(status)

    @functools.wraps(join)
    def joined(self: Any, timeout: float | None = None) -> None:
        join(self, timeout)
        if self.exitcode is not None and _C._races_shares_memory():
            _C._races_wait_for_hosts(f"end of process {self.pid}")

    its._bootstrap = run
    its.join = joined


def _order_stores() -> None:
    import torch.distributed

    if not torch.distributed.is_available():
        return

    def channels(_: Any, key: Any, *__: Any, **___: Any) -> list[str]:
        # A store may put a prefix before the keys of another one.
        keys = [key] if isinstance(key, str) else list(key)
        return [f"key {key.rpartition('/')[2]}" for key in keys]

    store: Any = torch.distributed.Store
    for name in ("set", "append", "multi_set", "delete_key"):
        setattr(store, name, _telling(getattr(store, name), channels))
    for name in ("get", "wait", "check", "multi_get"):
        setattr(store, name, _learning(getattr(store, name), channels))
    for name in ("add", "compare_set"):
        setattr(store, name, _learning(_telling(getattr(store, name), channels), channels))
