"""The rendezvous of a run whose ranks are all on this machine: at once, and without a name server.

torchrun's own standalone rendezvous is for machines with a name: ranks look for each other at that name, and
the agent looks it up for each of its records. A name server that does not answer costs 10 seconds each time,
and a name that it does not know costs the run.
"""

import argparse
import contextlib
import socket
import sys
import uuid
from collections.abc import Iterator
from typing import Any

from torch.distributed.elastic.rendezvous import dynamic_rendezvous


@contextlib.contextmanager
def made_here(args: argparse.Namespace) -> Iterator[None]:
    """Prepares torchrun's rendezvous inside a ``with`` block, unless the command line describes another one.

    A random delay of up to 0.3 seconds spares a rendezvous that many machines use. vrun's own is for the
    agents of one machine. For the name of a function in its records, the rendezvous reads the source files of
    all that is on the stack, and for the name of the machine it asks a name server.
    """
    if not args.own_rendezvous:
        yield
        return
    if args.standalone:
        _choose_this_machine(args)
    module: Any = dynamic_rendezvous
    delay, name, machine = module._delay, module.get_method_name, socket.getfqdn
    module._delay = lambda seconds: None if isinstance(seconds, tuple) else delay(seconds)
    module.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    socket.getfqdn = lambda name="": name or socket.gethostname()
    try:
        yield
    finally:
        module._delay, module.get_method_name, socket.getfqdn = delay, name, machine


def _choose_this_machine(args: argparse.Namespace) -> None:
    """Chooses what torchrun's --standalone chooses, but with an address in the place of each name."""
    args.standalone = False
    args.rdzv_backend = "c10d"
    args.rdzv_endpoint = "127.0.0.1:0"  # port 0 lets the system choose a free one
    args.rdzv_id = str(uuid.uuid4())
    args.local_addr = args.local_addr or "127.0.0.1"
