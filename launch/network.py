"""Gives emulated hosts a network: a namespace each, whose interfaces a bridge joins, and names.

The bridge has a namespace of its own, the switch, so nothing of it is seen on the machine's network. vrun
holds the namespaces, and each host's agent lives in its own. If vrun ends in whatever way, the switch
ends with it, and every link with the switch. Once a host's processes have ended, its namespace is gone.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from .links import Link
from .namespaces import Namespace

# The name of a host's interface, in its namespace.
INTERFACE = "eth0"
# They choose the interface of vccl, gloo, NCCL's users and tensorpipe. What the machine's have for a name
# does not exist in a host.
INTERFACE_VARIABLES = ("VCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
MOST_HOSTS = 900  # that have addresses
# Where root finds programs of the system. PATH of a user who has become root may lack it.
_SYSTEM_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
# What may pass at once after a pause, as the time that it takes, and at least in bytes.
_BURST_SECONDS = 0.001
_LEAST_BURST = 16384
# How long a packet may wait for a link, before packets are dropped.
_QUEUE_SECONDS = 0.05
# Runs the command line "$3"... as on a host of the name "$2" that finds all names in "$1". It leaves no file.
# The mounts are in a namespace of the process, so only it and what it starts see them.
_AS_HOST = """
mount -t tmpfs -o size=1m,mode=0755 vrun /tmp && printf %s "$1" > /tmp/hosts &&
mount --bind /tmp/hosts /etc/hosts && umount /tmp && hostname "$2" && shift 2 && exec "$@"
echo "vrun: the names of the hosts cannot be given to $2 (see above)." >&2; exit 1
"""
# Packets that may be on their way in the emulator, which drops what is more. Its default of 1000 is
# little for a fast link with a high latency.
_EMULATED_PACKETS = 100000


class NetworkError(Exception):
    """The machine cannot give the hosts a network. The text names the missing part, and says what to do."""


def address_of_host(host: int) -> str:
    """Returns the address of a host. The rendezvous sorts hosts by the text of their addresses."""
    return f"10.77.{1 + host // 100}.{100 + host % 100}"


class Network:
    """The network of a run: the switch and the hosts. It is removed at the end of a ``with`` block."""

    def __init__(self, hosts: int, link: Link) -> None:
        """Makes the network.

        Raises:
            NetworkError: a right, a program or a part of the kernel is missing.
        """
        if hosts > MOST_HOSTS:
            raise NetworkError(f"--netns has addresses for {MOST_HOSTS} hosts, and --hosts asks for {hosts}.")
        self.hosts: list[Namespace] = []
        with contextlib.ExitStack() as made:
            switch = _new_namespace(made)
            if link != Link():
                check_kernel(link)
            self.hosts += [_new_namespace(made) for _ in range(hosts)]
            commands = ["link add switch type bridge forward_delay 0", "link set switch up"]
            for number, host in enumerate(self.hosts):
                outer = f"host{number}"
                commands += [
                    f"link add {outer} type veth peer name {INTERFACE} netns {host.path}",
                    f"link set {outer} master switch up",
                ]
            _run_ip(switch, commands, self.hosts)
            for number, host in enumerate(self.hosts):
                _run_ip(
                    host,
                    [
                        "link set lo up",
                        f"link set {INTERFACE} up",
                        f"address add {address_of_host(number)}/16 dev {INTERFACE}",
                    ],
                )
                # The end of the link in the host holds back what the host sends, the other one what it gets.
                _run_tc(host, emulation(INTERFACE, link))
                _run_tc(switch, shaping(f"host{number}", link.bandwidth, "root"))
            self._made = made.pop_all()

    def as_host(self, number: int, command: list[str]) -> list[str]:
        """Returns the command line that runs a command with the names of a host: its own and all others'.

        torch asks for the names of addresses, and there is no way from a host to a server that knows names.
        """
        addresses = {"127.0.0.1": "localhost"}
        addresses |= {address_of_host(host): f"host{host}" for host in range(len(self.hosts))}
        # A server that listens for both versions of IP sees an IPv4 address in the form of IPv6.
        names = "::1 localhost\n" + "".join(
            f"{address} {name}\n::ffff:{address} {name}\n" for address, name in addresses.items()
        )
        unshare = [_program("unshare", "util-linux"), "--mount", "--uts", "--"]
        _program("hostname", "hostname")  # for _AS_HOST
        return [*unshare, "/bin/sh", "-c", _AS_HOST, "sh", names, f"host{number}", *command]

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *exception: Any) -> None:
        for host in self.hosts:
            host.end_processes()
        self._made.close()


def emulation(device: str, link: Link) -> list[str]:
    """Returns the commands of tc for what a host sends: latency and loss, and then the bandwidth."""
    if not link.emulated:
        return shaping(device, link.bandwidth, "root")
    delay = "" if link.latency is None else f" delay {link.latency}us"
    loss = "" if link.loss is None else f" loss {link.loss:g}%"
    emulator = f"qdisc add dev {device} root handle 1: netem limit {_EMULATED_PACKETS}{delay}{loss}"
    return [emulator, *shaping(device, link.bandwidth, "parent 1:")]


def shaping(device: str, bandwidth: int | None, place: str) -> list[str]:
    """Returns the command of tc that gives a device a bandwidth in bits a second, or none if that is None."""
    if bandwidth is None:
        return []
    # A bucket is filled at the bandwidth. Later, for a whole pause, no more than the burst goes at once.
    burst = max(_LEAST_BURST, int(bandwidth / 8 * _BURST_SECONDS))
    limit = burst + max(_LEAST_BURST, int(bandwidth / 8 * _QUEUE_SECONDS))
    return [f"qdisc add dev {device} {place} tbf rate {bandwidth}bit burst {burst}b limit {limit}b"]


def check_kernel(link: Link) -> None:
    """Raises NetworkError if the kernel cannot do what the link asks for."""
    kernel = os.uname().release
    with contextlib.ExitStack() as made:
        place = _new_namespace(made)
        if link.emulated:
            option = "--link-latency" if link.latency is not None else "--link-loss"
            tried = _tried(place, emulation("lo", Link(None, link.latency, link.loss))[0])
            if tried:
                raise NetworkError(
                    f"{option} needs the kernel's network emulator, netem (CONFIG_NET_SCH_NETEM), which "
                    f"Linux {kernel} here does not have ({tried}). Load its module (modprobe sch_netem) or "
                    "install it, often in a package of extra modules, or leave the option out. "
                    "--link-bandwidth does not need it."
                )
    with contextlib.ExitStack() as made:
        place = _new_namespace(made)
        # The kernel warns of a burst that is smaller than the packets of lo.
        for command in shaping("lo", link.bandwidth and 10**9, "root"):
            if tried := _tried(place, command):
                raise NetworkError(
                    f"--link-bandwidth needs the kernel's token bucket filter (CONFIG_NET_SCH_TBF), which "
                    f"Linux {kernel} here does not have ({tried}). Load its module (modprobe sch_tbf), or "
                    "leave the option out."
                )


def _new_namespace(made: contextlib.ExitStack) -> Namespace:
    try:
        namespace = Namespace()
    except PermissionError as error:
        raise NetworkError(
            f"--netns makes network namespaces, which needs root ({error.strerror}). Start it with sudo, or, "
            "where the system permits it, in namespaces of your own: unshare --user --map-root-user --net "
            "vrun ... A container needs --privileged. Without --netns, --hosts needs no rights."
        ) from error
    except OSError as error:
        raise NetworkError(
            f"--netns makes network namespaces, which failed: {error.strerror}. The sysctl "
            "user.max_net_namespaces limits their number."
        ) from error
    made.callback(namespace.close)
    return namespace


def _program(name: str, package: str = "iproute2") -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PROGRAMS}")
    if path is None:
        raise NetworkError(f"--netns needs the program {name} of {package} (apt-get install {package}).")
    return path


def _run_ip(place: Namespace, commands: list[str], others: Sequence[Namespace] = ()) -> None:
    ended = _run(place, [_program("ip"), "-batch", "-"], "\n".join(commands), others)
    if ended.returncode != 0:
        raise NetworkError(
            f"--netns: the hosts' network cannot be made: {_one_line(ended.stderr)}. The kernel needs "
            "virtual Ethernet and bridges (CONFIG_VETH, CONFIG_BRIDGE, IPv4)."
        )


def _run_tc(place: Namespace, commands: list[str]) -> None:
    for command in commands:
        if failed := _tried(place, command):
            raise NetworkError(f"--netns: tc {command}: {failed}.")


def _tried(place: Namespace, command: str) -> str:
    """Runs tc. Returns what it printed if it failed, or an empty text."""
    ended = _run(place, [_program("tc"), *command.split()])
    return _one_line(ended.stderr) or f"status {ended.returncode}" if ended.returncode != 0 else ""


def _run(
    place: Namespace, command: list[str], text: str = "", others: Sequence[Namespace] = ()
) -> subprocess.CompletedProcess[str]:
    try:
        return place.run(command, text, others)
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"--netns: {error}. The kernel may be waiting for an interface.") from error


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
