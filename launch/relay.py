"""Passes on what ranks print in whole lines, on a terminal with the rank in front of each.

A rank gets a pipe in the place of stdout, and of stderr. A thread of the agent reads the pipes. It is started
after the template was forked, and the agent itself forks nothing.
"""

import contextlib
import fcntl
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from . import forks
from .lines import Lines, prefix_of

# Seconds after which an unfinished line is shown on a screen, and on a terminal that cannot erase it again.
_SECONDS_ON_SCREEN = 0.1
_SECONDS_WITHOUT_ERASING = 1.0
# Seconds at the end for what ranks have printed last. What a rank has left running may keep a pipe open.
_SECONDS_AT_END = 0.5
# Seconds that the terminal may take for a part at the end. Ctrl-S stops it.
_SECONDS_TO_WRITE = 2.0
_LOOK_SECONDS = 0.05
_PART = 1 << 16
# How many parts are read at the end from a pipe into which somebody still writes.
_PARTS_AT_END = 64


class Relay:
    """The pipes from the ranks, and the places to which their output goes."""

    def __init__(self, numbers: list[int], prefixed: set[int], host: int | None) -> None:
        """Prepares the relay, which ``running`` runs.

        Args:
            numbers: which of the streams 1 and 2 are relayed.
            prefixed: on which of them the rank stands in front of each line.
            host: the host of this agent, or None if it is the only one. Unfinished lines of several agents
                would be mixed.
        """
        self._prefixed = prefixed
        self._host = host
        alone = host is None
        # In a file or a pipe an unfinished line would be broken by a line of another rank.
        self._shows_unfinished = {number for number in numbers if alone and os.isatty(number)}
        # Where both go to one place, one pipe keeps the order in which a rank prints to them.
        self._merged = len(numbers) == 2 and os.path.sameopenfile(1, 2)
        self._delay = _SECONDS_ON_SCREEN if any(map(_is_screen, numbers)) else _SECONDS_WITHOUT_ERASING
        self._lock = threading.Lock()  # of what follows
        self._lines = {
            number: Lines(functools.partial(self._write, number), alone and _is_screen(number))
            for number in (numbers[:1] if self._merged else numbers)
        }
        self._sources: dict[int, int] = {}  # the read end of a pipe -> the stream that it goes to
        self._broken: set[int] = set()
        self._turns = {} if alone else {number: _turn_at(number) for number in self._lines}
        self._end_at: float | None = None
        self._writing_since: float | None = None
        self._writers: list[BinaryIO] = []
        self._wake = os.eventfd(0)

    def writers(self, rank: int, numbers: list[int]) -> dict[int, BinaryIO]:
        """Returns pipes for those of a rank's streams ``numbers`` that are relayed."""
        found: dict[int, BinaryIO] = {}
        made: dict[int, BinaryIO] = {}
        for number in numbers:
            target = self._target(number)
            if target in self._lines:
                found[number] = made[target] if target in made else self._new_pipe(rank, target)
                made[target] = found[number]
        return found

    def begin_attempt(self) -> None:
        """Closes this end of the pipes. They end with the ranks that have them."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def say(self, line: str) -> None:
        """Writes a line of vrun's own to stderr."""
        data = line.encode(errors="replace")
        with self._lock:
            if lines := self._lines.get(self._target(2)):
                lines.say(data)
            else:
                self._write(2, data + b"\n")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Passes on what is printed inside a ``with`` block, and at its end what is left in the pipes."""
        thread = threading.Thread(target=self._run, name="vrun relay", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.begin_attempt()
            self._end_at = time.monotonic() + _SECONDS_AT_END
            os.eventfd_write(self._wake, 1)
            # On a busy machine the thread may come late. That is no reason to lose what ranks have printed.
            while thread.is_alive() and not self._is_stuck():
                thread.join(_LOOK_SECONDS)

    def _is_stuck(self) -> bool:
        since = self._writing_since
        return since is not None and time.monotonic() > since + _SECONDS_TO_WRITE

    def _target(self, number: int) -> int:
        return 1 if self._merged else number

    def _new_pipe(self, rank: int, target: int) -> BinaryIO:
        read, write = os.pipe()
        with self._lock:
            # Torch puts its own prefix before each line of a traceback.
            own = b"[rank%d]: " % rank
            prefix = prefix_of(rank, _has_colours(target), self._host) if target in self._prefixed else b""
            self._lines[target].add(read, prefix, own)
            self._sources[read] = target
        os.eventfd_write(self._wake, 1)
        self._writers.append(open(write, "wb", buffering=0))  # noqa: SIM115
        return self._writers[-1]

    def _run(self) -> None:
        """Reads the pipes until all have ended, or the time for that has passed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, forks.SIGNALS)  # they have to wake the main thread
        show_at: float | None = None
        while self._end_at is None or (self._sources and time.monotonic() < self._end_at):
            ready = self._wait(show_at)
            with self._lock:
                for source in ready:
                    self._pass_on(source)
                shown = [self._lines[number] for number in self._shows_unfinished & self._lines.keys()]
                if not any(lines.has_hidden for lines in shown):
                    show_at = None
                elif show_at is None:
                    show_at = time.monotonic() + self._delay
                elif time.monotonic() >= show_at:
                    for lines in shown:
                        lines.show_unfinished()
                    show_at = None
        with self._lock:
            for source in list(self._sources):
                self._drain(source)

    def _drain(self, source: int) -> None:
        """Passes on what is in a pipe, and closes it."""
        os.set_blocking(source, False)
        for _ in range(_PARTS_AT_END):
            try:
                self._pass_on(source)
            except BlockingIOError:
                break
            if source not in self._sources:
                return
        self._end(source)

    def _wait(self, show_at: float | None) -> list[int]:
        """Waits until something can be read or is due. Returns the pipes that can be read."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for source in self._sources:
            poll.register(source, select.POLLIN)
        times = [at for at in (show_at, self._end_at) if at is not None]
        wait = max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None
        ready = [source for source, _ in poll.poll(wait)]
        if self._wake in ready:
            ready.remove(self._wake)
            os.eventfd_read(self._wake)
        return ready

    def _pass_on(self, source: int) -> None:
        target = self._sources[source]
        data = os.read(source, _PART)
        if data and target not in self._broken:
            self._lines[target].feed(source, data)
        else:
            self._end(source)

    def _end(self, source: int) -> None:
        """Closes a pipe. Where nobody takes the output any more, the rank gets EPIPE as without the relay."""
        self._lines[self._sources.pop(source)].finish(source)
        os.close(source)

    def _write(self, number: int, data: bytes) -> None:
        """Writes whole lines. The agents of several hosts take turns."""
        turn = self._turns.get(number)
        self._writing_since = time.monotonic()
        if turn is not None:
            fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            while data and number not in self._broken:
                self._writing_since = time.monotonic()
                try:
                    data = data[os.write(number, data) :]
                except BlockingIOError:  # another program has made the terminal so
                    select.select([], [number], [])
                except OSError:
                    self._broken.add(number)
        finally:
            if turn is not None:
                fcntl.flock(turn, fcntl.LOCK_UN)
            self._writing_since = None


def relay_for(prefix: bool | None, ranks: int, hosts: int, host: int | None) -> Relay | None:
    """Returns the relay for the ranks of this agent, or None if none of their streams needs one.

    Args:
        prefix: whether the command line asks for it, or None if it does not say.
        ranks: the number of ranks of this agent.
        hosts: the number of pretended hosts, each with an agent.
        host: the one of this agent, or None if there is no other.
    """
    terminals = {number for number in (1, 2) if os.isatty(number)}
    several = ranks * hosts > 1
    if prefix is None:
        numbers, prefixed = [1, 2] if several else [], terminals
    elif prefix:
        numbers, prefixed = [1, 2], {1, 2}
    else:
        numbers, prefixed = [number for number in (1, 2) if several and number not in terminals], set()
    return Relay(numbers, prefixed, host) if numbers else None


def _turn_at(number: int) -> int | None:
    """Returns what the agents that write to one place lock, or None where it cannot be locked.

    The agents inherited the stream, and a lock belongs to what open() made, so each needs one of its own.
    """
    try:
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_screen(number: int) -> bool:
    """Whether a stream goes to a terminal on which a line can be erased."""
    return os.isatty(number) and os.environ.get("TERM", "dumb") != "dumb"


def _has_colours(number: int) -> bool:
    return _is_screen(number) and not os.environ.get("NO_COLOR")
