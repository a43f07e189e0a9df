"""A process that calls functions for a test, and keeps what they are given."""

import queue
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

SPAWN = mp.get_context("spawn")
TIMEOUT = 300  # seconds


class OtherProcess:
    """Is the process. What it keeps is in its `KEPT`."""

    def __init__(self) -> None:
        self.requests, self.answers = SPAWN.Queue(), SPAWN.Queue()
        self.process = SPAWN.Process(target=serve, args=(self.requests, self.answers), daemon=True)
        self.process.start()

    def call(self, function: Callable, *arguments: object) -> Any:
        """Returns what the function returns there. Raises RuntimeError for what it raises."""
        self.requests.put((function, arguments))
        done, answer = self.answers.get(timeout=TIMEOUT)
        if not done:
            raise RuntimeError(answer)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)


def serve(requests: Any, answers: Any) -> None:
    while True:
        try:
            function, arguments = requests.get(timeout=2 * TIMEOUT)
            answers.put((True, function(*arguments)))
        except queue.Empty:  # the test's process is gone
            return
        except Exception as error:
            answers.put((False, f"{type(error).__name__}: {error}"))
        function = arguments = None  # lets go of the tensors


KEPT: dict[str, Any] = {}


def keep(name: str, found: Any) -> None:
    KEPT[name] = found


def kept(name: str) -> Any:
    return KEPT[name]


def forget() -> None:
    KEPT.clear()


def fill(name: str, value: float) -> None:
    KEPT[name].fill_(value)
    torch.vdev.synchronize()  # the caller looks at the memory itself
