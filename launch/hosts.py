"""Pretends several hosts on this machine, with one torchrun agent for each and a parent that watches them.

Each agent gets its own VCCL_HOSTID, so that vccl treats its ranks as ranks of another machine. The parent
keeps the rendezvous store, starts the agents, passes signals on to them, and ends all of them when one
fails. With --netns, each agent is started in a network namespace (launch/network.py).
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType

from . import addresses
from .namespaces import (
    Namespace,
    end_processes_after_this_one,
    end_processes_around,
    is_namespace_of,
)
from .network import (
    INTERFACE,
    INTERFACE_VARIABLES,
    Network,
    NetworkError,
    address_of_host,
)
from .parent_death import signal_at_death_of_parent

# torchrun gives its ranks 30 s between SIGTERM and SIGKILL; an agent that takes longer is stuck itself.
GRACE_SECONDS = 40.0
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Runs a command line of vrun, and its parsed form, on ``args.hosts`` hosts.

    Returns the exit status of the agent that failed first, or 0.
    """
    group = AgentGroup()
    try:
        with (
            group.forwarding_signals(),
            Network(args.hosts, args.link) if args.netns else nullcontext() as network,
        ):
            return _run_agents(argv, args.hosts, network, group)
    except NetworkError as error:
        if group.signalled is not None:  # which has also ended the command that failed
            return 128 + group.signalled
        print(f"vrun: {error}", file=sys.stderr)
        return 1


def _run_agents(argv: Sequence[str], hosts: int, network: Network | None, group: "AgentGroup") -> int:
    import torch.distributed as dist

    places = network.hosts if network else [None] * hosts

    # The store lives in this process, which outlives the agents, so that no agent sees the store vanish
    # because another agent has ended. It listens on the network of the first host. Port 0 lets the system
    # choose a free port.
    with entered(places[0]):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Each agent forks its ranks, which have its addresses.
    with addresses.alike():
        for host, place in enumerate(places):
            command = agent_command(argv, host, store.port)
            group.start(network.as_host(host, command) if network else command, place)
    return group.wait()


def entered(place: Namespace | None) -> AbstractContextManager[None]:
    """Moves the calling thread into a host's network inside a ``with`` block, if the host has one."""
    return place.entered() if place else nullcontext()


def agent_command(argv: Sequence[str], host: int, port: int) -> list[str]:
    """Returns the command line of the agent of one host: vrun's own command line with the host added."""
    added = ["--host", host, "--port", port, "--parent", os.getpid()]
    return [sys.executable, "-m", "vccl.launch.vrun", *map(str, added), *argv]


@contextmanager
def host_of(args: argparse.Namespace) -> Iterator[None]:
    """Makes this process host ``args.host`` inside a ``with`` block: fills in its rendezvous and identity.

    Where the host has a network of its own, what its ranks have left behind is killed at the end.
    """
    signal_at_death_of_parent(signal.SIGTERM)
    if os.getppid() != args.parent:
        raise SystemExit("vrun: the process that has started this host's agent has ended")
    if args.netns and is_namespace_of(args.parent):  # at the end, all its processes are killed
        raise SystemExit("vrun: the agent of a host with --netns needs a network of its own")
    os.environ["VCCL_HOSTID"] = f"host{args.host}"
    args.nnodes = str(args.hosts)
    args.rdzv_backend = "c10d"
    args.rdzv_endpoint = f"{address_of_host(0) if args.netns else '127.0.0.1'}:{args.port}"
    args.rdzv_conf = ",".join(filter(None, [args.rdzv_conf, "is_host=false"]))
    args.rdzv_id = "vrun"
    if not args.netns:
        # The rendezvous numbers hosts in the order of their addresses. All of 127.0.0.0/8 is this machine.
        args.local_addr = f"127.0.{1 + args.host // 100}.{100 + args.host % 100}"
        yield
        return
    args.local_addr = address_of_host(args.host)
    os.environ.update(dict.fromkeys(INTERFACE_VARIABLES, INTERFACE))
    end_processes_after_this_one()
    try:
        yield
    finally:
        end_processes_around()


class AgentGroup:
    """Starts the processes of the agents, and ends all of them together."""

    def __init__(self) -> None:
        self.agents: list[subprocess.Popen[bytes]] = []
        self.signalled: int | None = None
        self.kill_at: float | None = None

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Passes signals that would end this process on to the agents, inside a ``with`` block."""

        def forward(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGQUIT:  # the ranks show their stacks, and go on
                self.send(number)
                return
            self.signalled = number
            self.end(number)

        previous = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def start(self, command: Sequence[str], place: Namespace | None) -> None:
        """Starts an agent, in a network of its own if ``place`` is one. Does nothing after a signal."""
        if self.signalled is not None:
            return
        # An agent has its own session, so that Ctrl-C reaches it through this process alone.
        with entered(place):
            self.agents.append(subprocess.Popen(command, start_new_session=True))
        if self.signalled is not None:  # the handler may have run before the agent was on the list
            self.end(self.signalled)

    def wait(self) -> int:
        """Blocks until every agent has ended. If one fails, ends the others. Returns the exit status."""
        status = 0
        while running := [agent for agent in self.agents if agent.poll() is None]:
            status = status or self.first_failure()
            if status and self.kill_at is None:
                self.end(signal.SIGTERM)
            if self.kill_at is not None and time.monotonic() > self.kill_at:
                for agent in running:
                    kill_tree(agent.pid)
            time.sleep(0.05)
        if self.signalled is not None:
            return 128 + self.signalled
        return status or self.first_failure()

    def first_failure(self) -> int:
        for agent in self.agents:
            if code := agent.poll():
                return code if code > 0 else 128 - code
        return 0

    def end(self, number: int) -> None:
        """Sends a signal to every agent. They get GRACE_SECONDS to end, and no more time at a second call."""
        self.kill_at = time.monotonic() + (GRACE_SECONDS if self.kill_at is None else 0)
        self.send(number)

    def send(self, number: int) -> None:
        for agent in self.agents:
            with suppress(ProcessLookupError):
                agent.send_signal(number)


def kill_tree(pid: int) -> None:
    """Kills a process and all that it started. The ranks of an agent have their own sessions."""
    for child in descendants(pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Returns the children of a process, their children, and so on."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found
