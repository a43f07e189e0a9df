"""The key of a server: all that a process takes over at its start and a fork could not change any more.

Two runs share a server if their keys are alike. Other differences, such as the environment of the script, the
current folder and the arguments, go with each run.
"""

import hashlib
import os
import sys

# Variables that torch, Python, the loader and libraries read when they are loaded.
PREFIXES = (
    *("TORCH", "PYTORCH", "PYTHON", "CUDA_", "TRITON_", "KINETO_"),
    *("LD_", "GLIBC_", "MALLOC_", "LC_", "LANG"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "ATEN_", "DNNL_", "ONEDNN_"),
)
NAMES = ("VDEV_POSE", "VCCL_SHARE_CPU", "LOGLEVEL", "HOME")
# A forked rank applies it to what is loaded (launch/forked_rank.py).
APPLIED_LATER = ("OMP_NUM_THREADS",)
# What a shell changes from command to command, and no module reads when it is imported.
OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL")
# Lines of /proc/self/status about rights and cores, which a process inherits.
STATUS = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:", "Mems_allowed:")


def environment_of_key(environment: dict[str, str], preload: list[str]) -> dict[str, str]:
    """Returns the variables that the key is made of. A preloaded module may read any variable."""
    if preload:
        left_out = (*OF_SHELLS, *APPLIED_LATER)
        return {name: value for name, value in environment.items() if name not in left_out}
    return {
        name: value
        for name, value in environment.items()
        if (name.startswith(PREFIXES) or name in NAMES) and name not in APPLIED_LATER
    }


def key(environment: dict[str, str], preload: list[str], folder: str) -> str:
    """Returns the key of the server for a command line.

    Args:
        environment: the variables of the run.
        preload: the modules that --preload names.
        folder: where these are looked for first.
    """
    parts = (
        sys.executable,
        sys.version,
        sys.path[1:],
        sorted(environment_of_key(environment, preload).items()),
        (preload, folder) if preload else None,
        _place_in_system(),
    )
    return hashlib.blake2b(repr(parts).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def _place_in_system() -> list[str]:
    """Returns namespaces, control groups, limits and rights, which a fork has of its parent."""
    found = [f"{os.getpriority(os.PRIO_PROCESS, 0)}"]
    for name in sorted(os.listdir("/proc/self/ns")):
        found.append(os.readlink(f"/proc/self/ns/{name}"))
    for name in ("cgroup", "limits", "oom_score_adj"):
        with open(f"/proc/self/{name}") as file:
            found.append(file.read())
    with open("/proc/self/status") as file:
        found += [line for line in file if line.startswith(STATUS)]
    return found
