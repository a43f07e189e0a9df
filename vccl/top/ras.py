"""Answers clients of NCCL's RAS, such as ``ncclras``, about the job of this process.

The protocol is NCCL's (2.30, version 2 of the protocol): lines of text over TCP. It is off unless
``VCCL_RAS_ADDR`` names an address, or ``NCCL_RAS_ADDR`` in pose. docs/hangs.md says what the answers hold.

References:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

import atexit
import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vccl._device_type import device_type
from vccl._version import VERSION
from vccl.top import jobs, screen

_PROTOCOL = 2
# Python must not end while a thread looks at jobs: the thread would be ended inside of C++, which aborts the
# process. So the end takes this lock and keeps it.
_looking = threading.Lock()
atexit.register(_looking.acquire)
# A client that says nothing for so long is let go, and so is one that sends a longer line.
_PATIENCE_S = 60.0
_LONGEST_LINE = 1024
# Each client has a thread and a descriptor, and whoever can reach the port can connect.
_MOST_CLIENTS = 16
# NCCL's names of the functions whose calls it counts.
_FUNCTIONS = {
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
}
# A process in one of these states does not answer, as the thread of NCCL's RAS would not.
_SILENT = ("stopped", "traced")


def serve(address: str) -> socket.socket | None:
    """Listens at ``host:port`` on a thread of its own. Returns its socket, or None if the address is taken.

    The first process of a machine gets the address, and answers for all ranks of its job on the machine.
    Further processes go on without.

    Raises:
        OSError: the address is none of this machine's.
    """
    host, _, port = address.rpartition(":")
    family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    # A forked child would keep the port when this process has ended.
    os.register_at_fork(after_in_child=listener.close)
    threading.Thread(target=_accept, args=(listener,), name="vccl ras", daemon=True).start()
    return listener


def _accept(listener: socket.socket) -> None:
    places = threading.BoundedSemaphore(_MOST_CLIENTS)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:  # it was closed
                return
            time.sleep(0.1)  # this process has no descriptor to give, for instance
            continue
        if not places.acquire(blocking=False):
            _refuse(connection)
            continue
        connection.settimeout(_PATIENCE_S)
        threading.Thread(
            target=_answer, args=(connection, places), name="vccl ras client", daemon=True
        ).start()


def _refuse(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(0)  # a line fits, or the client gets none
        connection.send(f"ERROR: {_MOST_CLIENTS} clients are connected already; try again later\n".encode())


def _answer(connection: socket.socket, places: threading.Semaphore) -> None:
    """Answers one client until it has its report, or leaves, and then gives its place back."""
    client = _Client()
    with contextlib.ExitStack() as stack:
        stack.callback(places.release)
        stack.enter_context(connection)
        try:
            with connection.makefile("rb") as lines:
                while not client.is_served and (line := lines.readline(_LONGEST_LINE)).endswith(b"\n"):
                    connection.sendall(client.answer(line.decode(errors="replace").strip()).encode())
            connection.shutdown(socket.SHUT_RDWR)  # a forked child may have the descriptor, too
        except OSError:  # the client has left, or says nothing
            return


@dataclass
class _Client:
    """What one client has asked for so far."""

    report: Callable[[dict[str, Any], float], str] = lambda found, _seconds: screen.as_text(found) + "\n"
    is_served: bool = False

    def answer(self, line: str) -> str:
        """Returns the answer to a line, whose case does not matter, as in NCCL."""
        command = line.lower()
        if command.startswith("client protocol "):
            return f"SERVER PROTOCOL {_PROTOCOL}\n"
        if command.startswith("timeout "):
            # The time in which NCCL's threads have to answer each other. Nobody is asked here.
            seconds = command.removeprefix("timeout ")
            is_number = seconds.isascii() and seconds.isdigit()
            return "OK\n" if is_number else f"ERROR: Invalid timeout value {seconds}\n"
        if command.startswith("set format "):
            return self._set_format(command.removeprefix("set format "))
        if command in ("status", "verbose status"):
            begin = time.monotonic()
            self.is_served = True
            try:
                with _looking:
                    found = jobs.look(stacks=command == "verbose status", pid=os.getpid())
                return self.report(found, time.monotonic() - begin)
            except Exception as error:
                return f"ERROR: {error}\n"
        return f"ERROR: Unknown command {line}\n"

    def _set_format(self, name: str) -> str:
        if name == "json":
            self.report = as_json
        elif name == "text":
            self.report = _Client().report
        else:
            return f"ERROR: Invalid format {name}\n"
        return "OK\n"


def as_json(found: dict[str, Any], seconds: float) -> str:
    """Returns what ``jobs.look()`` has found in the form of NCCL's RAS. It took the given time."""
    groups = [(job, group) for job in found["jobs"] for group in job["groups"] if _is_open(group)]
    report = {
        "nccl_version": _nccl_version(),
        "cuda_runtime_version": 0,
        "cuda_driver_version": 0,
        "timestamp": time.strftime("%F %T"),
        "communicators_count": len(groups),
        "communicators": [_communicator(job, group) for job, group in groups],
        "ras": {"collection_time_sec": round(seconds, 3), "timeouts_count": 0},
    }
    return json.dumps(report, indent=2) + "\n"


def _is_open(group: dict[str, Any]) -> bool:
    return len(group["left"]) < len(group["calls"])


def _nccl_version() -> str:
    """Returns the version of NCCL that cards in pose show, and otherwise that of vccl."""
    return ".".join(map(str, torch.cuda.nccl.version())) if device_type() == "cuda" else VERSION


def _communicator(job: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    processes = {rank["rank"]: rank for rank in job["ranks"]}
    answering, missing = [], []
    for number, rank in enumerate(group["ranks"]):
        process = processes.get(rank)
        if process is None or str(rank) not in group["calls"] or process["state"] in (*_SILENT, "dead"):
            missing.append(_missing(number, process))
        else:
            answering.append(_rank(number, process, group["calls"][str(rank)], rank in group["left"]))
    return {
        "hash": _hash(job["id"], group["name"]),
        "secondary_hash": f"{_hash(job['id'])}:{_hash(group['name'])}",
        "size": len(group["ranks"]),
        "ranks_count": len(answering),
        "missing_ranks_count": len(missing),
        "ranks": answering,
        "missing_ranks": missing,
    }


def _hash(*texts: str) -> str:
    return "0x" + hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _place(number: int, process: dict[str, Any] | None) -> dict[str, Any]:
    card = process["card"] if process and process["card"] is not None else -1
    return {
        "rank": number,
        "host": process["host"] if process else "",
        "pid": process["pid"] if process else 0,
        "cuda_dev": card,
        "nvml_dev": card,
    }


def _rank(number: int, process: dict[str, Any], calls: dict[str, int], left: bool) -> dict[str, Any]:
    status = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": left,
        "destroy_flag": left,
        "abort_flag": False,
    }
    counts = {name: calls[call] for name, call in _FUNCTIONS.items()}
    return {**_place(number, process), "status": status, "collective_counts": counts}


def _missing(number: int, process: dict[str, Any] | None) -> dict[str, Any]:
    dead = process is not None and process["state"] == "dead"
    return {
        **_place(number, process),
        "status": {"unresponsive": not dead, "considered_dead": dead},
    }
