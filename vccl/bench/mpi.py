"""Measures an installed MPI beside the backends of torch.distributed, with the program mpi.c."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from vccl.bench.cases import Case
from vccl.bench.measure import TURNS, Effort, Timing, summary

SOURCE = Path(__file__).with_name("mpi.c")
PATIENCE = 300  # seconds for one start
# An MPI is started anew for each turn, which takes half a second, so it gets fewer turns than the others.
STARTS = 3


class Mpi:
    """Builds and runs the program. Rank 0 alone does that, and the other ranks sleep meanwhile.

    Raises:
        FileNotFoundError: there is no mpicc or no mpirun.
        subprocess.CalledProcessError: the program does not build.
    """

    def __init__(self, ranks: int) -> None:
        for tool in ("mpicc", "mpirun"):
            if shutil.which(tool) is None:
                raise FileNotFoundError(f"{tool} is not installed: install an MPI, or leave mpi out")
        self.ranks = ranks
        self.folder = tempfile.TemporaryDirectory(prefix="vccl-bench-")
        self.program = Path(self.folder.name) / "mpi"
        subprocess.run(["mpicc", "-O2", "-o", str(self.program), str(SOURCE)], check=True)
        version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
        self.name = version.splitlines()[0].strip()
        self.command = ["mpirun", "-n", str(ranks)]
        if "Open MPI" in version or "Open RTE" in version:
            # Its ranks are not bound to cores, as those of the other contenders. They yield if they
            # outnumber cores.
            self.command += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            if ranks > len(os.sched_getaffinity(0)):
                self.command += ["--mca", "mpi_yield_when_idle", "1"]

    def measure(self, collective: str, case: Case, effort: Effort) -> Timing:
        """Measures as measure() does, at the size of `case`. It does not look for wrong elements."""
        first = self._run(collective, case.size, TURNS)
        fitting = int(effort.seconds * 1e6 / max(1.0, first.median().item()))
        rounds = effort.iterations or max(effort.fewest, min(effort.most, fitting))
        times = [self._run(collective, case.size, max(1, rounds // STARTS)) for _ in range(STARTS)]
        return summary((case.size, case.bus_factor()), torch.cat(times) / 1e6, 0)

    def _run(self, collective: str, size: int, iterations: int) -> torch.Tensor:
        """Returns the microseconds of each call."""
        command = [*self.command, str(self.program), collective, str(size), str(iterations)]
        # Some MPIs read a few of torchrun's variables, which are not meant for them.
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TORCHELASTIC", "LOCAL_", "GROUP_", "ROLE_", "MASTER_"))
            and key not in ("RANK", "WORLD_SIZE")
        }
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
        )
        if output.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.stderr.strip()[-2000:]}")
        return torch.tensor([float(line) for line in output.stdout.split()], dtype=torch.float64)

    def close(self) -> None:
        self.folder.cleanup()
