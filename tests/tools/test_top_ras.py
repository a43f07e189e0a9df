"""Clients of NCCL's RAS are answered about the job of a process."""

import contextlib
import json
import os
import socket
import sys
import time

import pytest

from vccl.top import ras

SCRIPT = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("vccl")
tensor = torch.ones(4)
for _ in range(3):
    dist.broadcast(tensor, 0)
dist.all_reduce(tensor)
dist.barrier()
if dist.get_rank() == 0:
    host, _, port = os.environ["VCCL_RAS_ADDR"].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"CLIENT PROTOCOL 2\\nSET FORMAT json\\nSTATUS\\n")
        with connection.makefile() as answers:
            print(answers.read())
dist.barrier()
dist.destroy_process_group()
"""


def talk(address, *lines):
    """Returns what the server says to the lines of one client, until it ends the connection."""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answers:
            return answers.read()


@pytest.fixture
def address():
    listener = ras.serve("localhost:0")
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept(), as close() does not
    listener.close()


def test_the_protocol(address):
    assert talk(address, "CLIENT PROTOCOL 2") == "SERVER PROTOCOL 2\n"
    answers = talk(
        address, "timeout 3", "TIMEOUT x", "SET FORMAT xml", "set format JSON", "MONITOR", "STATUS", "STATUS"
    )
    lines, _, report = answers.partition("{")
    assert lines.splitlines() == [
        "OK",
        "ERROR: Invalid timeout value x",
        "ERROR: Invalid format xml",
        "OK",
        "ERROR: Unknown command MONITOR",
    ]
    found = json.loads("{" + report)  # one report: the second STATUS comes after the end
    assert (found["communicators"], found["communicators_count"]) == ([], 0)
    assert talk(address, "STATUS") == "No job of this user has a group of vccl.\n"
    assert talk(address, "VERBOSE STATUS") == "No job of this user has a group of vccl.\n"


def test_a_line_without_an_end_ends_the_connection(address):
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"x" * 4096)
        with contextlib.suppress(ConnectionError):  # which says that not all of the line was read
            assert connection.recv(1) == b""


def test_a_second_server_goes_on_without_the_address(address):
    assert ras.serve(f"localhost:{address[1]}") is None


def group_of(ranks, left=()):
    calls = dict.fromkeys(("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"), 7)
    return {
        "name": "0",
        "ranks": ranks,
        "left": list(left),
        "calls": {str(rank): calls for rank in ranks[:3]},
    }


def test_ranks_that_do_not_answer_are_missing():
    states = {4: "waits", 5: "stopped", 6: "dead"}
    processes = [
        {"rank": rank, "pid": 100 + rank, "host": "node1", "card": rank - 4, "state": state}
        for rank, state in states.items()
    ]
    found = {
        "jobs": [{"id": "j", "ranks": processes, "groups": [group_of([4, 5, 6, 7]), group_of([4], [4])]}]
    }
    report = json.loads(ras.as_json(found, 0.25))
    assert report["ras"] == {"collection_time_sec": 0.25, "timeouts_count": 0}
    (communicator,) = report["communicators"]  # the other one was destroyed
    assert (communicator["size"], communicator["ranks_count"], communicator["missing_ranks_count"]) == (
        4,
        1,
        3,
    )
    (answering,) = communicator["ranks"]
    assert (answering["rank"], answering["pid"], answering["cuda_dev"]) == (0, 104, 0)
    assert answering["collective_counts"]["AllReduce"] == 7
    missing = {entry["rank"]: entry for entry in communicator["missing_ranks"]}
    assert missing[1]["status"] == {"unresponsive": True, "considered_dead": False}
    assert missing[2]["status"] == {"unresponsive": False, "considered_dead": True}
    assert missing[3]["status"] == {"unresponsive": True, "considered_dead": False} and missing[3]["pid"] == 0


def test_a_rank_answers_for_its_job(run, script):
    """At an address of the loopback that no other process of the machine has."""
    pid = os.getpid()
    address = f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}:28028"
    command = [sys.executable, "-m", "vccl.launch.vrun", "--cards", "2", script(SCRIPT)]
    printed = run(command, env={"VCCL_RAS_ADDR": address})
    report = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert report["communicators_count"] == 1 and report["nccl_version"]
    (communicator,) = report["communicators"]
    assert (communicator["size"], communicator["missing_ranks"]) == (2, [])
    counts = [rank["collective_counts"] for rank in communicator["ranks"]]
    assert counts[0] == {"Broadcast": 3, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 2}
    assert counts[1]["Broadcast"] == 3


ENDS_WHILE_IT_ANSWERS = """
import socket
from vccl.top import ras
address = ras.serve("localhost:0").getsockname()
clients = [socket.create_connection(address) for _ in range(4)]
for client in clients:
    client.sendall(b"STATUS\\n")
ras._looking.acquire()  # a client's look is over, or none has begun: further ones come while Python ends
ras._looking.release()
"""


def test_a_process_ends_well_while_it_answers(run):
    run([sys.executable, "-c", ENDS_WHILE_IT_ANSWERS])


def test_a_look_that_fails_is_told_to_the_client(address, monkeypatch):
    def fail(**_options):
        raise RuntimeError("nothing can be read")

    monkeypatch.setattr(ras.jobs, "look", fail)
    assert talk(address, "STATUS") == "ERROR: nothing can be read\n"


def test_clients_are_bounded(address):
    with contextlib.ExitStack() as stack:
        for _ in range(ras._MOST_CLIENTS):
            connection = stack.enter_context(socket.create_connection(address, timeout=60))
            connection.sendall(b"CLIENT PROTOCOL 2\n")
            assert connection.recv(100) == b"SERVER PROTOCOL 2\n"
        with socket.create_connection(address, timeout=60) as refused:
            assert refused.makefile().read() == "ERROR: 16 clients are connected already; try again later\n"
    # A client that leaves makes room for another, once its thread has seen that.
    for _ in range(100):
        with contextlib.suppress(OSError):
            if talk(address, "CLIENT PROTOCOL 2") == "SERVER PROTOCOL 2\n":
                return
        time.sleep(0.1)
    pytest.fail("no client was let in again")
