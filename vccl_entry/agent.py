"""Makes a fork of the server equal to a client that runs vrun itself, and runs vrun there."""

import io
import marshal
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import Any

from . import messages

# Seconds for a request, which its client sends at once.
_SECONDS_FOR_REQUEST = 60.0


def run(client: socket.socket, message: messages.Message) -> None:
    """Runs the command line that the client sends, and ends the process.

    Args:
        client: the connection, of which the head of the request has been read.
        message: that head. Its descriptors are the client's stdin, stdout, stderr and current folder.
    """
    from vccl.launch import forked_rank, vrun

    status = 1
    try:
        _take_descriptors(message.descriptors)
        client.settimeout(_SECONDS_FOR_REQUEST)
        with client:
            request = marshal.loads(messages.receive_body(client, message))
        _become(request)
        vrun.command(started_as=request["client"])
    except SystemExit as end:  # of the parser of the command line, which has printed why
        status = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        status = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    forked_rank.leave(status)


def _take_descriptors(descriptors: list[int]) -> None:
    *streams, folder = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.fchdir(folder)
    for descriptor in descriptors:
        os.close(descriptor)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = _stream(getattr(sys, f"__{name}__"), number, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(old: io.TextIOWrapper, number: int, mode: str) -> io.TextIOWrapper:
    """Returns a stream as Python makes it at its start, which depends on what the descriptor is."""
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = old.name
    buffer = io.BufferedWriter(raw) if mode == "w" else io.BufferedReader(raw)
    stream: Any = io.TextIOWrapper(buffer, encoding=old.encoding, errors=old.errors)
    stream.mode = mode
    if mode == "w":
        # write_through is what python -u sets.
        line_buffering = not old.write_through and (number == 2 or stream.isatty())
        stream.reconfigure(line_buffering=line_buffering, write_through=old.write_through)
    return stream


def _become(request: dict[str, Any]) -> None:
    """Takes over what belongs to the client's process."""
    from vccl.launch import forked_rank

    forked_rank.replace_environment(request["environment"])
    time.tzset()
    tempfile.tempdir = None  # it was chosen by the variables of the server
    os.umask(request["umask"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.argv = request["argv"]
    sys.orig_argv = request["orig_argv"]
