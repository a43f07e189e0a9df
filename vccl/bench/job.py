"""Starts ranks of the bench from the bench itself."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

import torch.distributed as dist


def world() -> dist.ProcessGroup:
    """Returns the default group, which a caller has made before."""
    group = dist.group.WORLD
    assert group is not None
    return group


def run_ranks(
    ranks: int,
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    module: str = "vccl.bench",
) -> None:
    """Runs ``vrun --cards RANKS -m MODULE WORDS`` without its table.

    Args:
        ranks: the number of ranks.
        words: the arguments of the module.
        environment: that of the job, and the one of this process if None.
        module: the bench, or another module.

    Raises:
        subprocess.CalledProcessError: the job failed. It has printed the reason.
    """
    job = [sys.executable, "-m", "vccl.launch.vrun", "--cards", str(ranks), "-m", module]
    subprocess.run([*job, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
