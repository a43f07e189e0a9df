"""Holds a stream of a rank back, so that what is queued behind stays queued until the test lets it go."""

import threading

import torch

BOUND = 60  # seconds, after which a gate opens that a test has left closed


class Gate:
    """Holds the current stream back from the begin of the ``with`` statement until ``open()``, or to its end.

    Raises:
        AssertionError: at the end, if the gate has opened by itself because a test waited behind it.
    """

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.was_late = False

    def __enter__(self) -> "Gate":
        torch.vdev.synchronize()
        self.stream = torch.vdev.current_stream()
        torch.vdev._launch_host_func(self.wait)
        return self

    def wait(self) -> None:
        self.was_late |= not self.opened.wait(BOUND)

    def is_closed(self) -> bool:
        return not self.opened.is_set() and not self.stream.query()

    def open(self) -> None:
        self.opened.set()

    def open_and_wait(self) -> None:
        self.open()
        self.stream.synchronize()

    def __exit__(self, *_: object) -> None:
        self.open()
        assert not self.was_late, "the test has waited for a stream behind its closed gate"
