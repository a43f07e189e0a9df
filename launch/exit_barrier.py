"""Lets a signal end an agent whose ranks have ended, and which waits for those of the other hosts.

torchrun's agent waits in a call of its store, up to five minutes. Python runs the handler of a signal only
when that call has returned.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch.distributed.elastic.utils import store as store_util


@contextlib.contextmanager
def hears_signals() -> Iterator[None]:
    """Makes torchrun's barriers, inside a ``with`` block, raise what a handler of a signal raises."""
    hooked: Any = store_util
    original = hooked.barrier

    def barrier(*args: Any, **options: Any) -> None:
        problems: list[BaseException] = []

        def wait() -> None:
            try:
                original(*args, **options)
            except BaseException as error:
                problems.append(error)

        # A daemon, because after a signal nobody waits for it.
        waiting = threading.Thread(target=wait, name="exit barrier", daemon=True)
        waiting.start()
        waiting.join()
        if problems:
            raise problems[0]

    hooked.barrier = barrier
    try:
        yield
    finally:
        hooked.barrier = original
