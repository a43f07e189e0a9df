"""The command ``vrun``.

``vrun --keep`` has to start without torch, and without the parser of torchrun, which imports torch.
"""

import os
import signal
import sys

from . import own_options, standard_streams


def command() -> None:
    """Runs the command line of this process, and ends it."""
    standard_streams.replace_closed()
    arguments = sys.argv[1:]
    options = own_options.find(arguments)
    if options.stop or options.keep:
        from . import client

        if options.stop:
            sys.exit(client.stop())
        try:
            status = client.run(arguments, options)
        except ValueError as error:
            sys.exit(f"vrun: {error}")
        if status is not None:
            _end_as(status)
    try:
        from vccl.launch import vrun
    except Exception as error:
        from . import torch_backend

        if not torch_backend.is_refusal(error):
            raise
        sys.exit(f"vrun: {error}")
    vrun.command()


def _end_as(status: int) -> None:
    """Ends the process as another one has ended: ``status`` is -n if signal n ended that one."""
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)
