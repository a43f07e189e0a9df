"""Hosts for tests: network namespaces that a bridge joins, whose links can be cut. Needs root."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

CLONE_NEWNET = 0x40000000
PREFIX = "vccl-test-"


def ip(*arguments: object) -> None:
    done = subprocess.run(
        ["ip", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(map(str, arguments))}: {done.stdout.strip()}")


def why_impossible() -> str | None:
    """Says why this machine cannot have network namespaces for a test, or returns nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("ss") is None:
        return "network namespaces need the programs ip and ss (iproute2)"
    try:
        Network("x").close()
    except OSError as error:
        return f"this machine makes no network namespaces: {error}"
    return None


def remove_leftovers() -> None:
    """Removes the namespaces of makers that were killed."""
    for space in Path("/run/netns").glob(f"{PREFIX}*"):
        maker = space.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", maker).exists():
            ip("netns", "delete", space.name)


class Network:
    """One namespace a host, named by one letter each. All are removed by close()."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self._name = f"{PREFIX}{os.getpid()}"
        self._owner = os.getpid()
        self._made: list[str] = []
        remove_leftovers()
        try:
            self._make("hub")
            ip("-n", self.name("hub"), "link", "add", "bridge", "type", "bridge")
            ip("-n", self.name("hub"), "link", "set", "bridge", "up")
            for number, host in enumerate(hosts):
                self._join(host, f"10.77.0.{number + 1}/24")
        except OSError:
            self.close()
            raise

    def name(self, host: str) -> str:
        return f"{self._name}-{host}"

    def _make(self, host: str) -> None:
        ip("netns", "add", self.name(host))
        self._made.append(host)
        ip("-n", self.name(host), "link", "set", "lo", "up")

    def _join(self, host: str, address: str) -> None:
        self._make(host)
        hub, space = self.name("hub"), self.name(host)
        ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"to-{host}", "netns", hub)
        ip("-n", hub, "link", "set", f"to-{host}", "master", "bridge", "up")
        ip("-n", space, "address", "add", address, "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")

    def enter(self, host: str) -> None:
        """Moves this process, which must have one thread, to a host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(Path("/run/netns", self.name(host))) as space:
            if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def set_link(self, host: str, *, up: bool, end: str = "hub") -> None:
        """Cuts or mends the link of a host at one `end`: "hub" or "host"."""
        where = ("hub", f"to-{host}") if end == "hub" else (host, "eth0")
        ip("-n", self.name(where[0]), "link", "set", where[1], "up" if up else "down")

    def reset_connections(self, host: str) -> None:
        """Ends all TCP connections of a host, as a firewall does that has forgotten them."""
        command = ["ip", "netns", "exec", self.name(host), "ss", "-K", "state", "established"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stdout.strip()}")

    def remove_link(self, host: str) -> None:
        """Removes the link of a host for good."""
        ip("-n", self.name("hub"), "link", "delete", f"to-{host}")

    def close(self) -> None:
        """Removes all of it, unless this is a process that the maker has forked."""
        while self._made and os.getpid() == self._owner:
            ip("netns", "delete", self.name(self._made.pop()))
