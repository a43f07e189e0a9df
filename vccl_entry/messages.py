"""The messages between ``vrun --keep`` and its server, over a Unix socket.

A message is a head of fixed length, a body of the length that the head gives, and descriptors that go with
the head. Both ends have checked that the other one is the same user (server_folder.py), and run the same
Python: the body of a request is in the format of ``marshal``.
"""

import socket
import struct

# From the client.
# Number: seconds without use after which the server ends. Body: what client.py makes.
RUN = b"R"
STOP = b"S"
# From the server.
STARTED = b"A"  # descriptor: the agent's pidfd
ENDED = b"E"  # number: as subprocess.Popen.returncode
REFUSED = b"N"  # body: why the server cannot run it
OUTDATED = b"O"  # a file that the server has imported is not what it was
STOPPING = b"B"  # number: how many runs the server still waits for

RUN_DESCRIPTORS = 4  # stdin, stdout, stderr, and the current folder
_HEAD = struct.Struct("=cii")
_LONGEST = 1 << 26  # bytes of a body; the system bounds a command line with its environment far below


class Broken(Exception):
    """The other end has closed the connection, or does not keep to the format."""


class Message:
    """The head of a message, and the length in bytes of the body that follows."""

    def __init__(self, kind: bytes, number: int, descriptors: list[int], length: int) -> None:
        self.kind = kind
        self.number = number
        self.descriptors = descriptors
        self.length = length


def send(
    connection: socket.socket,
    kind: bytes,
    number: int = 0,
    body: bytes = b"",
    descriptors: tuple[int, ...] = (),
) -> None:
    """Sends a message.

    Raises:
        OSError: the other end is gone.
    """
    head = _HEAD.pack(kind, number, len(body))
    if descriptors:
        socket.send_fds(connection, [head], descriptors)
    else:
        connection.sendall(head)
    connection.sendall(body)


def receive(connection: socket.socket) -> Message:
    """Receives the head of a message. The caller owns its descriptors.

    Raises:
        Broken: see there.
        TimeoutError: the socket's timeout has passed.
    """
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, _HEAD.size, RUN_DESCRIPTORS)
    except ConnectionError:
        raise Broken from None
    # The kernel does not divide a message as short as a head.
    if len(head) != _HEAD.size:
        raise Broken
    kind, number, length = _HEAD.unpack(head)
    if not 0 <= length <= _LONGEST:
        raise Broken
    return Message(kind, number, descriptors, length)


def receive_body(connection: socket.socket, message: Message) -> bytes:
    """Receives the body that follows a head. Raises as ``receive``."""
    body = bytearray()
    while len(body) < message.length:
        try:
            part = connection.recv(min(1 << 20, message.length - len(body)))
        except ConnectionError:
            raise Broken from None
        if not part:
            raise Broken
        body += part
    return bytes(body)
