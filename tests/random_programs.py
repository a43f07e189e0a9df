"""What tests that play random programs have in common. A program is a number, its seed.

VCCL_TEST_SEED=N begins with the seed N, VCCL_TEST_PROGRAMS=N plays N programs, and VCCL_TEST_SECONDS=N plays
for that long.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("VCCL_TEST_SEED", "0"))
SECONDS = float(os.environ.get("VCCL_TEST_SECONDS", "0"))
# What an operator may raise that meets a failure.
Refused = (IndexError, RuntimeError)


def number_of_programs(usual: int) -> int:
    return int(os.environ.get("VCCL_TEST_PROGRAMS", usual))


def seeds(programs: int) -> Iterator[int]:
    """Yields the seeds of so many programs, and of more until SECONDS are over."""
    end = time.monotonic() + SECONDS
    seed = SEED
    while seed - SEED < programs or time.monotonic() < end:
        yield seed
        seed += 1


@contextlib.contextmanager
def blamed(seed: int, who: str = "") -> Iterator[None]:
    """Adds the seed to whatever is raised inside of the block."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"VCCL_TEST_SEED={seed}{who}: {error!r}") from error


def play_together(seed: int, players: Sequence[Callable[[], None]]) -> None:
    """Calls each player in a thread of its own, and raises what one of them has raised, with the seed."""
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with blamed(seed, f", thread {number} of {len(players)}"):
                players[number]()
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(players))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads), f"seed {seed}: threads have not ended"
    for error in wrong:
        raise error


def insist(call: Callable[[], Any]) -> Any:
    """Returns the result of a call that reads nothing bad. Errors that nobody has raised yet come first."""
    for _ in range(10):
        try:
            return call()
        except Refused as error:
            refusal = error
    raise AssertionError("a good value cannot be read") from refusal


def refuses(call: Callable[[], object]) -> None:
    """Checks that a call that reads something bad raises whenever it is called."""
    for _ in range(5):
        with pytest.raises(Refused):
            call()
