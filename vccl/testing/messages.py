"""The messages between pytest's process, the template and the ranks. All are pickled, over Unix sockets.

The template also sends Started and Ended of vccl.launch.forks.
"""

import dataclasses
import enum
import pickle
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


def send(pipe: Connection, message: object) -> None:
    """Sends a message.

    ``Connection.send`` would pass tensors on by torch's reductions, which need both processes to live on.
    """
    pipe.send_bytes(pickle.dumps(message))


def receive(pipe: Connection) -> Any:
    """Receives a message.

    Raises:
        EOFError, OSError: the other end is closed.
    """
    return pickle.loads(pipe.recv_bytes())


@dataclasses.dataclass(frozen=True)
class Begin:
    """To a process that has just been started: how it becomes a session of pytest that can collect tests."""

    arguments: tuple[str, ...]  # pytest's own command line
    folder: str
    import_path: tuple[str, ...]
    worker_input: Mapping[str, Any] | None  # of xdist
    base_folder: str | None  # for the temporary folders of ranks
    rank_of_debugger: int | None
    coverage: Mapping[str, Any] | None
    arguments_of_ranks: tuple[str, ...]  # besides pytest's own


@dataclasses.dataclass(frozen=True)
class Fork:
    """To the template: makes a rank that knows the tests of a file. Three descriptors follow.

    They are the rank's end of its pipe, its stdout and its stderr.
    """

    file: str
    environment: Mapping[str, str]
    keeps_terminal: bool  # the rank prints where pytest prints


@dataclasses.dataclass(frozen=True)
class Refused:
    """The template cannot fork. If ``fatal``, a process of its own for the rank could not do better.

    If ``for_good``, no test can have ranks.
    """

    reason: str
    fatal: bool = False
    for_good: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """The values that make a process a rank of a world."""

    rank: int
    size: int
    device: str  # the device type
    backend: str | None  # of the default group, or None for no group
    hosts: tuple[str, ...]  # the pretended host of each rank, or ()
    pids: tuple[int, ...]  # of all ranks
    address: tuple[str, int]  # of the TCPStore
    number: int  # of the call. The keys of one call are kept apart from those of others.
    free_port: int  # for a store that the test makes
    group_timeout: float
    environment: Mapping[str, str | None]  # None: the variable is removed


@dataclasses.dataclass(frozen=True)
class RunTest:
    """Runs a test with its fixtures."""

    place: Place
    file: str
    node_id: str
    folder: str | None  # what the fixture tmp_path returns on all ranks


@dataclasses.dataclass(frozen=True)
class RunFunction:
    """Calls ``function(rank, size, *args)``."""

    place: Place
    module: str
    name: str
    arguments: tuple[Any, ...]


class Order(enum.Enum):
    """To a rank that runs something, at any time."""

    ABORT = enum.auto()  # the collectives that are under way
    DESCRIBE = enum.auto()  # where its threads are


@dataclasses.dataclass(frozen=True)
class Failing:
    """From a rank: something has failed at this time of the monotonic clock, which all processes share."""

    at: float


@dataclasses.dataclass(frozen=True)
class Leaving:
    """From a rank: it is about to end itself, as the test wants."""


@dataclasses.dataclass(frozen=True)
class Description:
    text: str


@dataclasses.dataclass(frozen=True)
class Done:
    """From a rank: the call has ended."""

    result: Any  # what a function has returned, or the serialized reports of a test
    error: str  # the traceback of a function that has raised, or ""
    warnings: tuple[Mapping[str, Any], ...]
    left: tuple[str, ...]  # what the call has left behind. If there is anything, the rank is not used again.
