"""Runs a command line of ``vrun --keep`` through the server, and ends the servers.

The process that the user started is the client. It passes its command line, variables, current folder and
standard streams to the server, forwards signals to the process that the server forks for it (the agent),
and ends as that has ended. Nothing here imports torch.
"""

import contextlib
import marshal
import os
import select
import signal
import socket
import sys
from types import FrameType

from . import messages, server_key
from .answers import NoAnswer, await_answer
from .messages import Broken
from .own_options import OwnOptions
from .server_folder import Folder, FolderError, open_folder

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
DEFAULT_KEEP_SECONDS = 1800
LONGEST_KEEP_SECONDS = 604800
# Seconds for the server's first answer. It imports torch and what --preload names before it answers.
_PATIENCE = 600.0
# Seconds that a server has to answer that it ends.
_PATIENCE_TO_STOP = 60.0
# Seconds that a server has to tell how an agent has ended.
_PATIENCE_FOR_STATUS = 60.0
_ATTEMPTS = 3


class _Unusable(Exception):
    """The server cannot run the command line, and why."""


def keep_seconds() -> int:
    """Returns after how many seconds without use a server ends.

    Raises:
        ValueError: the variable has another value than a number of seconds that is allowed.
    """
    text = os.getenv("VCCL_KEEP_SECONDS", str(DEFAULT_KEEP_SECONDS))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LONGEST_KEEP_SECONDS):
        raise ValueError(f"VCCL_KEEP_SECONDS={text}: allowed are 1 to {LONGEST_KEEP_SECONDS} seconds")
    return int(text)


def run(arguments: list[str], options: OwnOptions) -> int | None:
    """Runs a command line of vrun through a server, which it starts if there is none.

    Returns:
        The exit status as subprocess.Popen.returncode, or None if the command line has to be run without a
        server. Then the reason stands on stderr.

    Raises:
        ValueError: see ``keep_seconds``.
    """
    seconds = keep_seconds()
    environment = dict(os.environ)
    if options.as_cuda:
        environment["VDEV_POSE"] = "cuda"
    if options.sanitize:
        environment.setdefault("VDEV_SANITIZER", "1")
    script = None if options.module else options.script
    folder_of_modules = os.path.dirname(os.path.realpath(script)) if script else os.getcwd()
    key = server_key.key(environment, options.preload, folder_of_modules)
    body = marshal.dumps(_request(arguments, environment))
    reason = "the server ends as soon as it is asked"
    try:
        folder = open_folder()
        for _ in range(_ATTEMPTS):
            connection = folder.connect(key) or _start_server(
                folder, key, environment, options.preload, folder_of_modules
            )
            with connection:
                agent = _ask(connection, seconds, body)
                if agent is not None:
                    return _attend(connection, agent)
    except (FolderError, _Unusable, OSError) as error:
        reason = str(error)
    print(f"vrun: --keep has no effect: {reason}.", file=sys.stderr)
    return None


def stop() -> int:
    """Ends all servers of this user, and says how many. Returns the exit status."""
    status = stopped = waiting = 0
    try:
        folder = open_folder()
        keys = folder.list_keys()
    except (FolderError, OSError) as error:
        print(f"vrun: {error}", file=sys.stderr)
        return 1
    for key in keys:
        try:
            runs = _stop(folder, key)
        except (FolderError, OSError) as error:
            print(f"vrun: {error}", file=sys.stderr)
            status = 1
            continue
        stopped += runs is not None
        waiting += bool(runs)
    text = f"vrun: stopped {stopped} server{'s' * (stopped != 1)}"
    if waiting:
        text += f" ({waiting} will end with the last of their runs)"
    print(text)
    return status


def _request(arguments: list[str], environment: dict[str, str]) -> dict[str, object]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "argv": [sys.argv[0], *arguments],
        "orig_argv": sys.orig_argv,
        "environment": environment,
        "umask": mask,
        "ignored": [int(number) for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN],
        "client": os.getpid(),
    }


def _start_server(
    folder: Folder, key: str, environment: dict[str, str], preload: list[str], folder_of_modules: str
) -> socket.socket:
    """Starts a server, unless another process has meanwhile. Returns a connection to it.

    The socket listens before the server runs, so that it takes connections while the server imports.

    Raises:
        FolderError, OSError: that is not possible.
    """
    import subprocess  # which a later run does without

    with folder.locked():
        if connection := folder.connect(key):
            return connection
        with folder.listen(key) as listener:
            descriptors = (listener.fileno(), folder.descriptor)
            arguments = (key, *descriptors, folder.path, preload, folder_of_modules)
            # The same path for modules as here, which the folder of the command is a part of.
            code = (
                f"import sys; sys.path[:] = {sys.path!r}\n"
                f"from vccl_entry import server; server.main(*{arguments!r})"
            )
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={name: environment[name] for name in environment if name not in server_key.APPLIED_LATER},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
            connection = folder.connect(key)
    if connection is None:
        raise FolderError("the server's socket has vanished")
    return connection


def _ask(connection: socket.socket, seconds: int, body: bytes) -> int | None:
    """Asks the server to run. Returns the agent's pidfd, or None if another server has to be asked.

    Raises:
        _Unusable: no other server could run it either.
    """
    connection.settimeout(_PATIENCE)
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        messages.send(connection, messages.RUN, seconds, body, (0, 1, 2, folder))
        await_answer(connection, _PATIENCE)
        answer = messages.receive(connection)
        if answer.kind == messages.STARTED and len(answer.descriptors) == 1:
            return answer.descriptors[0]
        text = messages.receive_body(connection, answer).decode(errors="replace")
    except NoAnswer as error:
        raise _Unusable(str(error)) from None
    except TimeoutError:
        raise _Unusable("the server does not answer") from None
    except (Broken, ConnectionError):
        return None
    finally:
        os.close(folder)
    if answer.kind == messages.REFUSED:
        raise _Unusable(text)
    return None


def _attend(connection: socket.socket, agent: int) -> int:
    """Forwards signals to the agent until it has ended. Returns how it ended."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent, number)

    # A signal before this ends the client, and the server then ends the agent.
    # Ignored ones are forwarded as well: the agent ignores them too, until torchrun sets its handlers.
    for number in FORWARDED:
        signal.signal(number, forward)
    connection.settimeout(None)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(agent, select.POLLIN)
    poll.poll()
    try:
        # The server tells how the agent has ended.
        await_answer(connection, _PATIENCE_FOR_STATUS)
        answer = messages.receive(connection)
    except NoAnswer as error:
        print(f"vrun: the run has ended, and nobody knows how: {error}", file=sys.stderr)
        return 1
    except Broken:
        print("vrun: the server has been killed, and the run with it", file=sys.stderr)
        return -signal.SIGKILL
    return answer.number


def _stop(folder: Folder, key: str) -> int | None:
    """Ends a server, and removes the socket of a dead one.

    Returns:
        For how many runs the server still waits, or None if there was none.

    Raises:
        FolderError: the server does not answer.
    """
    with folder.locked():
        connection = folder.connect(key)
        if connection is None:
            folder.remove(key)
            return None
    with connection:
        connection.settimeout(_PATIENCE_TO_STOP)
        try:
            messages.send(connection, messages.STOP)
            await_answer(connection, _PATIENCE_TO_STOP)
            runs = messages.receive(connection).number
            if runs == 0:
                messages.receive(connection)  # raises when the process has ended
        except (Broken, ConnectionError):
            return 0
        except NoAnswer as error:
            raise FolderError(str(error)) from None
        except TimeoutError:
            raise FolderError(f"the server with the socket {key} does not answer") from None
    return runs
