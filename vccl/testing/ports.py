"""Ports for stores that tests make."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Returns a port that the system gives to no other program inside of the ``with`` block.

    A test may listen there.

    The port is bound here but not listened on. The kernel then chooses it for nobody, and still lets a socket
    with SO_REUSEADDR bind it, which is how torch's TCPStore and most servers bind.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
