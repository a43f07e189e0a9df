"""Looks at a command line before anything is started, so that it is refused once and not by each rank."""

import argparse
import importlib.util
import os
import shutil
import sys

MOST_CARDS = 64  # of a machine: VDEV_DEVICE_COUNT takes no more


def what_is_wrong(args: argparse.Namespace) -> str | None:
    """Returns why no rank of the parsed command line could run, or None."""
    if args.cards is not None and args.cards > MOST_CARDS:
        return (
            f"--cards {args.cards}: a machine has {MOST_CARDS} cards at most. More ranks need more --hosts, "
            f"or --nproc-per-node {args.cards} if they use no cards"
        )
    program = args.training_script
    if args.module:
        return None if _is_module(program.partition(".")[0]) else f"there is no module named {program}"
    if args.no_python:
        return None if shutil.which(program) else f"there is no program {program} on the path"
    return None if os.path.exists(program) else f"there is no file {program} in {os.getcwd()}"


def _is_module(name: str) -> bool:
    """Whether Python finds a module at the top, in the current folder as a rank would, or elsewhere."""
    if name in sys.modules:
        return True
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path[:] = before
