"""Lets torchrun pass on a script's own ``--max``, as in ``torchrun -m vccl.bench all_reduce --max 64M``.

Before Python 3.12.7, and in 3.13.0, argparse looks for abbreviations of torchrun's options in the script's
arguments too, and exits where one has several expansions. ``--max`` has two, ``--max-restarts`` and
``--max_restarts``.
The patch is applied in torchrun's own process alone, whether it runs by that name or as ``python -m
torch.distributed.run``.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from vccl._torch_patches.registry import Patch


def _is_affected_torchrun() -> bool:
    """Returns whether this process is torchrun, on a Python whose argparse has the fault."""
    if sys.version_info >= (3, 12, 7) and sys.version_info[:3] != (3, 13, 0):
        return False
    if os.path.basename(sys.argv[0]) == "torchrun":
        return True
    # While ``python -m`` imports the package that holds the module, "-m" stands for the module's file.
    module = sys.orig_argv[-len(sys.argv)] if sys.argv[0] == "-m" else ""
    return module.removeprefix("-m") in ("torch.distributed.run", "torch.distributed.launch")


PATCH = Patch(
    __name__,
    without="`torchrun` and `python -m torch.distributed.run` before Python 3.12.7 "
    "take a script's `--max` for their own",
    until="Python 3.12.7 is the oldest that vccl supports",
    upstream=("python/cpython#58573", "pytorch/pytorch#120601", "pytorch/pytorch#196064"),
    needed=_is_affected_torchrun,
)


# ``python -m`` runs a second copy of torchrun's module, which does not exist yet: only the class can be
# changed.
@PATCH.replaces("argparse:ArgumentParser._get_option_tuples", "(self, option_string)")
def _get_option_tuples(
    original: Callable[..., list[Any]], self: argparse.ArgumentParser, option_string: str
) -> list[Any]:
    found = original(self, option_string)
    is_torchruns = "--max-restarts" in self._option_string_actions
    return found if len(found) == 1 or not is_torchruns else []
