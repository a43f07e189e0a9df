"""Waits for a server's answer, and says whose answer is missing."""

import os
import select
import socket
import sys
import time

from .server_folder import peer_of

# Seconds between two looks at the server's process. One that goes on answers within milliseconds, unless it
# is still importing.
_PERIOD = 1.0
# Seconds after which the client says what it waits for.
_SILENCE = 60.0


class NoAnswer(Exception):
    """The server does not answer. The text names the process, and says what to do."""


def await_answer(connection: socket.socket, patience: float) -> None:
    """Blocks until the connection can be read.

    Args:
        patience: seconds for a server that is not stopped. It may still import torch.

    Raises:
        NoAnswer: the server is stopped, or the time is over.
    """
    pid, _ = peer_of(connection)
    # The first client has made the socket, and is connected to it before the server has begun.
    name = "the server that this command has started" if pid == os.getpid() else f"the server (pid {pid})"
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    begin = time.monotonic()
    told = False
    while not poll.poll(_PERIOD * 1000):
        waited = time.monotonic() - begin
        if is_stopped(pid):
            raise NoAnswer(
                f"{name} is stopped, by SIGSTOP or a debugger; kill -CONT {pid} lets it go on, "
                f"kill -KILL {pid} ends it"
            )
        if waited >= patience:
            raise NoAnswer(f"{name} has not answered for {waited:.0f} s")
        if waited >= _SILENCE and not told:
            print(
                f"vrun: {name} has not answered for {waited:.0f} s. It may still import torch.",
                file=sys.stderr,
            )
            told = True


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program, in brackets, may hold anything.
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
