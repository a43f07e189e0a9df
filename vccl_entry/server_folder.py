"""The folder in which the servers of ``vrun --keep`` listen, which only their user can enter.

A server has a socket there, whose name is its key. The folder is opened once, and its owner and mode are
checked on the descriptor. All names are looked up through that descriptor, which also keeps them short enough
for the address of a socket.
"""

import contextlib
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator

_SUFFIX = ".socket"
_LOCK = "lock"
# Seconds that a process holds the lock at most: it starts a process, or looks at sockets.
_PATIENCE = 30.0
# How many processes may wait for a server, and seconds until one that finds that many tries again. The system
# tells nobody when there is room.
_BACKLOG = 64
_PAUSE_AT_FULL_QUEUE = 0.01


class FolderError(Exception):
    """The folder cannot be used, and why."""


class Folder:
    """The opened folder. ``open_folder`` opens it, and checks that it is its user's alone."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def close(self) -> None:
        os.close(self.descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps others from making and removing sockets inside a ``with`` block.

        Raises:
            FolderError: another process has held the lock for too long.
        """
        file = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=self.descriptor)
        try:
            until = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise FolderError(f"another process has locked {self.path}") from None
                    time.sleep(0.005)
            yield
        finally:
            os.close(file)

    def list_keys(self) -> list[str]:
        """Returns the keys of the servers that listen, or have listened and left their socket."""
        names = os.listdir(self.descriptor)
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def connect(self, key: str) -> socket.socket | None:
        """Connects to a server, and waits while its queue is full. Returns None if none listens.

        Raises:
            FolderError: another user's process listens there, or the queue stays full.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_PATIENCE)
        try:
            _connect_when_there_is_room(connection, self._address(key))
            check_peer(connection)
        except (ConnectionRefusedError, FileNotFoundError):
            connection.close()
            return None
        except OSError as error:
            connection.close()
            raise FolderError(str(error)) from None
        return connection

    def listen(self, key: str) -> socket.socket:
        """Makes a server's socket, in the place of one that is left. Call this with the lock held."""
        self.remove(key)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self._address(key))
        listen_as_this_process(listener)
        return listener

    def identity(self, key: str) -> tuple[int, int] | None:
        """Returns the numbers that tell the socket of that name from a later socket, or None."""
        try:
            found = os.stat(key + _SUFFIX, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns

    def remove(self, key: str) -> None:
        """Removes a server's socket, so that nobody connects any more. Call this with the lock held."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(key + _SUFFIX, dir_fd=self.descriptor)

    def _address(self, key: str) -> str:
        return f"/proc/self/fd/{self.descriptor}/{key}{_SUFFIX}"


def open_folder() -> Folder:
    """Opens the folder of this user, and makes it where it is missing.

    Raises:
        FolderError: others could enter it, or it cannot be made.
    """
    path = _path()
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise FolderError(str(error)) from None
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise FolderError(f"{path} has to belong to its user alone, with mode 0700")
    return Folder(path, descriptor)


def _connect_when_there_is_room(connection: socket.socket, address: str) -> None:
    """Connects a socket that has a timeout, which does not make it wait for room in the server's queue."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return connection.connect(address)
        except BlockingIOError:
            if time.monotonic() > until:
                reason = f"{_BACKLOG} processes or more have waited for the server for {_PATIENCE:.0f} s"
                raise TimeoutError(reason) from None
        time.sleep(_PAUSE_AT_FULL_QUEUE)


def listen_as_this_process(listener: socket.socket) -> None:
    """Lets the socket listen. Those that connect from now on find this process at the other end."""
    listener.listen(_BACKLOG)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Returns the pid and the user of the process at the other end: of a server, which last listened."""
    form = struct.Struct("3i")
    pid, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return pid, user


def check_peer(connection: socket.socket) -> None:
    """Checks that the process at the other end is of the same user.

    Raises:
        PermissionError: it is not.
    """
    _, user = peer_of(connection)
    if user != os.geteuid():
        raise PermissionError(f"the other end of the socket is user {user}")


def _path() -> str:
    """Returns the folder's path: below XDG_RUNTIME_DIR, or in the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime):
        return os.path.join(runtime, "vccl-vrun")
    temporary = os.environ.get("TMPDIR", "")
    return os.path.join(temporary if os.path.isdir(temporary) else "/tmp", f"vccl-vrun-{os.geteuid()}")
