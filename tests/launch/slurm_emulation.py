"""Stands in for ``scontrol`` and ``srun`` of Slurm, as far as the templates use them, on one machine.

A test puts copies with these names on the path. Each node is a pretended host. The variables are those that
Slurm 22.05 gives a job and its tasks.
"""

import os
import subprocess
import sys


def scontrol(arguments: list[str]) -> int:
    assert arguments == ["show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], arguments
    print("\n".join(["localhost"] * int(os.environ["SLURM_JOB_NUM_NODES"])))
    return 0


def srun(arguments: list[str]) -> int:
    assert arguments[0] == "--kill-on-bad-exit=1" and not arguments[1].startswith("-"), arguments
    nodes, tasks = (int(os.environ[name]) for name in ("SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE"))
    children = [
        subprocess.Popen(
            arguments[1:],
            env={
                **os.environ,
                "SLURM_NTASKS": str(nodes * tasks),
                "SLURM_PROCID": str(node * tasks + task),
                "SLURM_LOCALID": str(task),
                "SLURM_NODEID": str(node),
                "VCCL_HOSTID": f"node{node}",
            },
        )
        for node in range(nodes)
        for task in range(tasks)
    ]
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    program = {"scontrol": scontrol, "srun": srun}[os.path.basename(sys.argv[0])]
    sys.exit(program(sys.argv[1:]))
