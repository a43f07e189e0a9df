"""Launchers on several hosts: the commands of docs/launch.md, and jobs that recover when a rank is killed."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import (
    attempts,
    commands_of_page,
    environment_of,
    trained,
    wait_for_port,
    write_script,
)
from processes import wait_until

from vccl.launch.hosts import kill_tree
from vccl.launch.links import Link
from vccl.launch.network import Network, NetworkError
from vccl.testing.ports import reserved_port

C10D, STATIC_0, STATIC_1, ELASTIC = commands_of_page("torchrun on several hosts")


@pytest.fixture(params=["namespaces", "pretended"])
def begin(request, start, tmp_path) -> Iterator[Callable]:
    """begin(host, command, **variables) starts a command on one of two hosts.

    In namespaces a command runs as it stands, and finds host0 by name. Pretended hosts share this machine.
    """
    write_script(tmp_path)
    programs = Path(sys.executable).parent
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        network: Network | None = None
        if request.param == "namespaces":
            try:
                network = stack.enter_context(Network(2, Link()))
            except NetworkError as error:
                pytest.skip(str(error))

        def begin(host: int, command: list[str], **variables: str):
            given = next(
                int(word.rpartition(":")[2]) for word in command if word.rpartition(":")[2].startswith("295")
            )
            line = [str(programs / command[0]), *command[1:]]
            place = network.hosts[host] if network else None
            if network:
                line = network.as_host(host, line)
            else:
                line = [word.replace("host0", "127.0.0.1").replace(str(given), str(port)) for word in line]
            with place.entered() if place else contextlib.nullcontext():
                child = start(line, env={**environment_of(host), **variables})
            if host == 0:  # it keeps the store, also where both hosts have the address
                wait_for_port(given if network else port, place, child)
            return child

        yield begin


def both(begin: Callable, commands: list[list[str]], **variables: str) -> str:
    """Runs commands on two hosts, and returns what they printed."""
    children = [begin(host, command, **variables) for host, command in enumerate(commands)]
    outputs = [child.output(600) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    return "".join(outputs)


@pytest.mark.daily
def test_static_rendezvous(begin):
    assert trained(both(begin, [STATIC_0, STATIC_1])) == [(rank, 4) for rank in range(4)]


@pytest.mark.daily
@pytest.mark.parametrize("program", ["torchrun", "vrun"])
def test_c10d_rendezvous_after_a_rank_was_killed(begin, program):
    command = [program, *C10D[1:]]
    output = both(begin, [command, command], DIES="3")
    assert trained(output) == [(rank, 4) for rank in range(4)] and attempts(output) == 1


# It takes more than a minute, in which torchrun gives the host up, so there is one form of it.
@pytest.mark.daily
@pytest.mark.parametrize("begin", ["pretended"], indirect=True)
def test_elastic_after_a_host_has_vanished(begin, tmp_path):
    first, other = (begin(host, ELASTIC, STAYS="4") for host in range(2))
    wait_until(lambda: all((tmp_path / f"begun{rank}").exists() for rank in range(4)))
    kill_tree(other.pid)
    output = first.output(600)
    assert first.returncode == 0, output
    assert trained(output) == [(0, 2), (1, 2)] and attempts(output) > 0


@pytest.mark.parametrize(
    "options",
    [["--cards", 2], ["--cards", 1, "--hosts", 2], ["--cards", 1, "--hosts", 2, "--netns"]],
    ids=["1_host", "2_hosts", "2_networks"],
)
def test_vrun_recovers_after_a_rank_was_killed(vrun, tmp_path, options):
    if "--netns" in options:
        try:
            Network(2, Link()).__exit__()
        except NetworkError as error:
            pytest.skip(str(error))
    output = vrun(*options, "--max-restarts", 1, write_script(tmp_path), env={"DIES": "1"})
    assert trained(output) == [(0, 2), (1, 2)] and attempts(output) == 1


def test_vrun_ends_when_there_are_no_more_restarts(vrun, tmp_path):
    """A rank that was killed has status 128 + 9."""
    output = vrun("--cards", 2, write_script(tmp_path), env={"DIES": "1"}, status=137)
    assert trained(output) == []
