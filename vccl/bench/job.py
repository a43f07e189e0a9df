"""Ranks of the bench, started by the bench itself."""

import subprocess
import sys
from collections.abc import Mapping, Sequence


def run_ranks(ranks: int, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """``vrun --cards RANKS -m vccl.bench WORDS``, without its table. `environment`: None means ours.

    Raises:
        subprocess.CalledProcessError: the job failed; it has said why.
    """
    job = [sys.executable, "-m", "vccl.launch.vrun", "--cards", str(ranks), "-m", "vccl.bench"]
    subprocess.run([*job, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
