"""Prints what a report of a bug needs: versions, cards, compilers, and what is switched on."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

import vccl
from vccl import _C, _torch_patches
from vccl._device_type import backend_name, device_type

# Variables of others that change what vccl does (docs/environment.md).
_OTHERS = (
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "OMP_NUM_THREADS",
    "CXX",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
)
_PREFIXES = ("VDEV_", "VCCL_", "NCCL_", "TORCH_NCCL_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def facts() -> Iterator[tuple[str, str]]:
    """Yields what there is to know about this installation and process, as names and texts of one line."""
    version = torch.version
    gpus = f"CUDA {version.cuda}" if version.cuda else f"ROCm {version.hip}" if version.hip else None
    yield "vccl", f"{vccl.__version__} ({os.path.dirname(_C.__file__)})"
    yield "torch", f"{torch.__version__}, built {f'with {gpus}' if gpus else 'for the CPU'}"
    yield "built by", f"{_C.compiler}, with torch {_C.torch_version}"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield "system", f"{platform.platform()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    yield "vector unit", torch.backends.cpu.get_cpu_capability()
    yield "cards", _cards()
    accelerator = torch.accelerator.current_accelerator()
    yield "accelerator", "none" if accelerator is None else accelerator.type
    there = dist.is_available() and dist.is_backend_available(backend_name())
    yield "backend", backend_name() if there else "none: this torch has no torch.distributed"
    yield "compiler", _compiler()
    yield "patches left out", ", ".join(_patches_left_out()) or "none"
    names = sorted(n for n in os.environ if n in _OTHERS or n.startswith(_PREFIXES))
    yield (
        "switched on",
        " ".join(f"{name}={os.environ[name]!r}" for name in names) or "nothing",
    )


def _cards() -> str:
    kind = device_type()
    count = _C.device_count()
    try:
        memory = torch.get_device_module(kind).get_device_properties(0).total_memory
    except (
        AssertionError,
        RuntimeError,
        ValueError,
    ) as error:  # there is none, or a variable has a bad value
        return f"none: {str(error).partition(chr(10))[0]}"
    return f"{kind}:0 to {kind}:{count - 1}, of {memory / 2**30:.1f} GiB each" + (
        ", posing as CUDA" if kind == "cuda" else ""
    )


def _compiler() -> str:
    """Returns the first line of what the compiler that torch.compile calls says about itself."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        return f"none: {name}, which torch.compile calls, is missing"
    told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30)
    return f"{told.stdout.partition(chr(10))[0] or name} ({shutil.which(name)})"


def _patches_left_out() -> list[str]:
    names = (*_torch_patches.DEVICE_PATCHES, *_torch_patches.DISTRIBUTED_PATCHES)
    patches = map(_torch_patches.patch, names)
    return [
        patch.name
        for patch in patches
        if patch.needed() and not patch.after_import_of and not patch.is_applied
    ]


def main() -> None:
    """Runs the command line of this process."""
    argparse.ArgumentParser(prog="python -m vccl", description=__doc__).parse_args()
    told = list(facts())
    width = max(len(name) for name, _ in told)
    for name, text in told:
        print(f"{name:{width}}  {text}")


if __name__ == "__main__":
    main()
