"""Several pretended hosts on this machine: one torchrun agent each, and a parent that watches them.

Each agent gets a VCCL_HOSTID of its own, so that vccl treats its ranks as those of another machine. The
parent keeps the rendezvous store, starts the agents, passes signals on, and ends all of them when one fails.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

# torchrun gives its ranks 30 s between SIGTERM and SIGKILL; an agent that takes longer is stuck itself.
GRACE_SECONDS = 40.0
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1


def run(argv: Sequence[str], host_count: int) -> int:
    """Runs `argv` (a vrun command line) on `host_count` pretended hosts. Returns the exit status of the agent
    that failed first, or 0."""
    import torch.distributed as dist

    # The store lives in this process, which outlives the agents: none of them sees the store vanish because
    # another one has ended. Port 0: nobody can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = AgentGroup([agent_command(argv, host, store.port) for host in range(host_count)])
    with group.forwarding_signals():
        group.start()
        return group.wait()


def agent_command(argv: Sequence[str], host: int, port: int) -> list[str]:
    """The same command line again, told which host it is."""
    return [sys.executable, "-m", "vccl.launch.vrun", "--host", str(host), "--port", str(port), *argv]


def become(args: argparse.Namespace) -> None:
    """In the agent of pretended host ``args.host``: fills in the rendezvous and the identity."""
    # The parent cannot clean up after a SIGKILL of its own.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.environ["VCCL_HOSTID"] = f"host{args.host}"
    args.nnodes = str(args.hosts)
    args.rdzv_backend = "c10d"
    args.rdzv_endpoint = f"127.0.0.1:{args.port}"
    args.rdzv_conf = ",".join(filter(None, [args.rdzv_conf, "is_host=false"]))
    args.rdzv_id = "vrun"
    # The rendezvous numbers hosts in the order of their addresses, and all of 127.0.0.0/8 is this machine.
    args.local_addr = f"127.0.{1 + args.host // 100}.{100 + args.host % 100}"


class AgentGroup:
    """The agents' processes: started together, ended together."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self.commands = commands
        self.agents: list[subprocess.Popen[bytes]] = []
        self.signalled: int | None = None
        self.kill_at: float | None = None

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """While entered, signals that would end this process go to the agents."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.signalled = number
            self.end(number)

        previous = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def start(self) -> None:
        for command in self.commands:
            # A session of its own: Ctrl-C reaches an agent through us, not a second time from the terminal.
            self.agents.append(subprocess.Popen(command, start_new_session=True))
            if self.signalled is not None:  # the handler may have run before the agent was on the list
                self.end(self.signalled)
                return

    def wait(self) -> int:
        """Until every agent has ended. The first that fails ends the others."""
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
        """Sends the signal to every agent and bounds how long they may take. A second call means now."""
        self.kill_at = time.monotonic() + (GRACE_SECONDS if self.kill_at is None else 0)
        for agent in self.agents:
            with suppress(ProcessLookupError):
                agent.send_signal(number)


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all it started: an agent's ranks have their own sessions and would stay."""
    for child in descendants(pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found
