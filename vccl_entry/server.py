"""The server of ``vrun --keep``: a process that has imported torch, and forks an agent for each run.

It starts no thread and asks about no cards, so that its forks are as good as new processes. It only takes the
head of a request itself; the fork reads the rest, and becomes the agent (vccl_entry/agent.py).
"""

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from . import messages
from .server_folder import Folder, check_peer, listen_as_this_process

# The system ends a server that has not imported everything after so many seconds.
_SECONDS_TO_IMPORT = 600
# A client sends the head of its message at once. It has so many seconds, and so many clients may be late.
_SECONDS_FOR_HEAD = 5.0
_MOST_SILENT = 64
# Seconds that an agent has to end after its client.
_SECONDS_TO_END = 10.0
# Every agent or rank would import these for itself.
_USED_LATER = ("encodings.idna", "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")


@dataclass
class _Silent:
    """A client that has connected, and not sent the head of its message yet."""

    client: socket.socket
    leave_at: float


@dataclass
class _Run:
    pid: int
    client: socket.socket
    kill_at: float | None = None


def main(key: str, listener: int, folder: int, path: str, preload: list[str], folder_of_modules: str) -> None:
    """Serves until it is told to stop, or was not used for some time.

    Args:
        key: the name of the server's socket in the folder.
        listener, folder: descriptors of the socket, and of the folder at ``path``.
        preload: modules to import besides torch, which are looked for in ``folder_of_modules`` first.
    """
    for descriptor in (listener, folder):
        os.set_inheritable(descriptor, False)
    own_listener = socket.socket(fileno=listener)
    listen_as_this_process(own_listener)
    # Python's own handler would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(_SECONDS_TO_IMPORT)
    refused = _import_torch()
    # What libraries that torch loads have for forks, such as the threads of OpenBLAS, has run then, as in the
    # template of a vrun without a server. A thread that there is afterwards is a preloaded module's.
    if os.fork():
        os._exit(0)
    listen_as_this_process(own_listener)
    signal.alarm(_SECONDS_TO_IMPORT)
    refused = refused or _import_modules(preload, folder_of_modules)
    signal.alarm(0)
    # Until here errors of imports were printed for the client that started the server.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)
    os.chdir("/")
    server = _Server(Folder(path, folder), key, own_listener, refused)
    request = server.serve()
    if request is not None:
        from . import agent

        agent.run(*request)
    os._exit(0)  # what was registered for the exit belongs to agents and ranks


def _import_torch() -> str | None:
    """Imports what agents and ranks need. Returns why that failed, or None."""
    try:
        for name in ("vccl.launch.vrun", *_USED_LATER):
            importlib.import_module(name)
        from vccl.launch import blas_threads

        blas_threads.leave_one()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _import_modules(preload: list[str], folder: str) -> str | None:
    """Imports what --preload names. Returns why agents cannot be forked, or None."""
    from vccl.launch import template

    refused = template.import_modules(preload, folder)
    return refused.reason if refused else None


class _Server:
    def __init__(self, folder: Folder, key: str, listener: socket.socket, refused: str | None) -> None:
        self._folder = folder
        self._key = key
        self._listener: socket.socket | None = listener
        self._identity = folder.identity(key)
        self._refused = refused
        self._files = _files_of_modules()
        self._silent: dict[int, _Silent] = {}  # by descriptor, as they came
        self._runs: dict[int, _Run] = {}  # an agent's pidfd -> what is known of it
        self._stopping: list[socket.socket] = []  # kept open until this process ends
        # Until the first client has asked, who may have ended.
        self._keep_seconds = _SECONDS_TO_IMPORT
        self._idle_at = time.monotonic() + self._keep_seconds

    def serve(self) -> tuple[socket.socket, messages.Message] | None:
        """Forks agents. Returns None when the server has to end.

        In an agent, returns the connection to its client, and the head of the request.
        """
        while self._listener is not None or self._runs:
            if not self._runs and time.monotonic() >= self._idle_at:
                self._leave_folder()
                break
            for ready in self._wait():
                if self._listener is not None and ready == self._listener.fileno():
                    self._accept()
                elif ready in self._silent:
                    request = self._hear(self._silent.pop(ready).client)
                    if request is not None:
                        return request
                elif ready in self._runs:
                    self._report_end(ready)
                else:
                    self._end_run_of(ready)
            self._end_overdue()
        return None

    def _wait(self) -> list[int]:
        """Waits for a client, the end of an agent or of its client, or until something is due."""
        poll = select.poll()
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for client in self._silent:
            poll.register(client, select.POLLIN)
        for agent, run in self._runs.items():
            poll.register(agent, select.POLLIN)
            if run.kill_at is None:
                # The agent reads from the connection. Only its end is of interest here.
                poll.register(run.client, select.POLLRDHUP)
        times = [run.kill_at for run in self._runs.values() if run.kill_at is not None]
        times += [silent.leave_at for silent in self._silent.values()]
        if not self._runs:
            times.append(self._idle_at)
        seconds = max(0.0, min(times) - time.monotonic()) if times else None
        return [ready for ready, _ in poll.poll(None if seconds is None else seconds * 1000 + 1)]

    def _accept(self) -> None:
        """Lets a client in. It may send its message later, and keeps no other client waiting."""
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        try:
            check_peer(client)
        except OSError:
            client.close()
            return
        client.settimeout(_SECONDS_FOR_HEAD)
        self._silent[client.fileno()] = _Silent(client, time.monotonic() + _SECONDS_FOR_HEAD)

    def _hear(self, client: socket.socket) -> tuple[socket.socket, messages.Message] | None:
        """Answers one client. Returns its request in the agent, and None in the server."""
        descriptors: list[int] = []
        try:
            message = messages.receive(client)
            descriptors = message.descriptors
            if message.kind == messages.STOP:
                self._leave_folder()
                messages.send(client, messages.STOPPING, len(self._runs))
                self._stopping.append(client)
                return None
            if message.kind == messages.RUN and len(descriptors) == messages.RUN_DESCRIPTORS:
                if self._start_agent(client, message.number):
                    return client, message
            else:
                client.close()
        except (messages.Broken, OSError):
            client.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _start_agent(self, client: socket.socket, keep_seconds: int) -> bool:
        """Forks an agent, or tells the client why not. Returns whether this process is the agent."""
        from vccl.launch import forks

        if self._files != _files_of_modules():
            self._turn_away(client, messages.OUTDATED, "")
            return False
        if reason := self._refused or _reason_not_to_fork():
            self._turn_away(client, messages.REFUSED, reason)
            return False
        try:
            descriptor, pid = forks.fork(set())
        except OSError as error:
            messages.send(client, messages.REFUSED, body=f"a fork failed: {error}".encode())
            client.close()
            return False
        if pid == 0:
            self._close_all()
            return True
        self._runs[descriptor] = _Run(pid, client)
        self._keep_seconds = keep_seconds
        with contextlib.suppress(OSError):  # the end of the connection is noticed later
            messages.send(client, messages.STARTED, descriptors=(descriptor,))
        return False

    def _turn_away(self, client: socket.socket, kind: bytes, reason: str) -> None:
        """Leaves the place to another server, since this one is of no use any more."""
        self._leave_folder()
        with client:
            messages.send(client, kind, body=reason.encode(errors="replace"))

    def _report_end(self, descriptor: int) -> None:
        from vccl.launch import forks

        run = self._runs.pop(descriptor)
        status = forks.status_of(descriptor)
        os.waitpid(run.pid, 0)
        with contextlib.suppress(OSError), run.client:
            messages.send(run.client, messages.ENDED, status)
        self._idle_at = time.monotonic() + self._keep_seconds

    def _end_run_of(self, client: int) -> None:
        """Ends the agent of a client that has ended. On SIGINT the agent ends its ranks, and tidies up."""
        for run in self._runs.values():
            if run.client.fileno() == client:
                os.kill(run.pid, signal.SIGINT)
                run.kill_at = time.monotonic() + _SECONDS_TO_END

    def _end_overdue(self) -> None:
        for descriptor, silent in list(self._silent.items()):
            if len(self._silent) > _MOST_SILENT or time.monotonic() > silent.leave_at:
                self._silent.pop(descriptor).client.close()
        for run in self._runs.values():
            if run.kill_at is not None and time.monotonic() > run.kill_at:
                os.kill(run.pid, signal.SIGKILL)

    def _leave_folder(self) -> None:
        """Takes no more clients. Those that have connected meanwhile start another server."""
        if self._listener is None:
            return
        with contextlib.suppress(Exception), self._folder.locked():
            if self._folder.identity(self._key) == self._identity:
                self._folder.remove(self._key)
        self._listener.close()
        self._listener = None
        for silent in self._silent.values():
            silent.client.close()
        self._silent.clear()

    def _close_all(self) -> None:
        """Closes what belongs to the server, in an agent."""
        if self._listener is not None:
            self._listener.close()
        self._folder.close()
        for descriptor, run in self._runs.items():
            os.close(descriptor)
            run.client.close()
        for client in [*self._stopping, *(silent.client for silent in self._silent.values())]:
            client.close()


def _reason_not_to_fork() -> str | None:
    from vccl.launch import template

    refused = template.reason_not_to_fork()
    return refused.reason if refused else None


def _files_of_modules() -> dict[str, tuple[int, int, int] | None]:
    """Returns the files of all modules, each with what changes when it is written anew."""
    found: dict[str, tuple[int, int, int] | None] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.startswith("/"):
            continue
        try:
            status = os.stat(path)
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            found[path] = None
    return found
