"""Writes docs/device.md: ``python tests/pose/device_page.py``.

What is refused on torch.vdev is in vccl/vdev/refused.py, what is refused in pose in names_of_cuda.py, and
what other devices have in other_devices.py. Every other name of torch.cuda is there.
"""

import importlib
import textwrap
from pathlib import Path
from types import ModuleType

import torch
from names_of_cuda import NOT_IN_ALL
from names_of_cuda import REFUSED as REFUSED_IN_POSE
from other_devices import MUSA, NPU
from uses_of_names import REFUSED_WITH

import vccl  # noqa: F401
from vccl.vdev import refused

PAGE = Path(__file__).resolve().parents[2] / "docs" / "device.md"
# Modules whose names torch.cuda has, too.
REPEATED = ("memory", "random", "graphs", "green_contexts", "streams")
# Modules with names of their own.
OWN = ("amp", "nvtx", "comm", "profiler", "nccl", "tunable", "gds", "jiterator", "sparse")
# Names of torch.cuda that torch.vdev has under another name.
RENAMED = {"CUDAGraph": "VDEVGraph", "CUDAPluggableAllocator": "VDEVPluggableAllocator"}
# Names that torch.vdev refuses with an error of their own, and arguments for a call.
REFUSED_AS_NOT_IMPLEMENTED = {
    "CUDAPluggableAllocator": ("library.so", "allocate", "free"),
    "caching_allocator_disabled": (),
    "change_current_allocator": (None,),
}
TEXT = f"""\
# Every name of torch.cuda

This page is written by `python tests/pose/device_page.py`. A test compares it with the installed torch
({torch.__version__.rpartition(".")[0]}), with `torch.vdev` and with cards in pose, so it fails when torch
gains a name.

- **torch.musa** is {MUSA.source}.
- **torch.npu** is {NPU.source}.
- **torch.vdev** is the cards' own module, and **in pose** says what `torch.cuda` does where cards pose as
  CUDA ([cuda.md](cuda.md)).

"yes" means that the name is there, another name stands for it, and "-" means that there is none. A refused
name is there and raises `NoGpuError` (a RuntimeError) when it is called, which says what to do. "refused with
False" means that it is refused with this argument alone. The word behind "refused" is explained at the end
of the page.
"""


REPEATED_TEXT = " have some of these names again, and the modules of torch.vdev have them, too."


def wrapped(paragraph: str) -> str:
    """Returns the paragraph in lines of the docs' width."""
    return textwrap.fill(paragraph, 118, break_on_hyphens=False, break_long_words=False) + "\n"


def names(module: str) -> list[str]:
    """Returns the public names of a module of torch.cuda."""
    found = importlib.import_module(f"torch.cuda.{module}" if module else "torch.cuda")
    return sorted(
        {*getattr(found, "__all__", ()), *NOT_IN_ALL.get(module, ())}, key=lambda name: (name.lower(), name)
    )


def of_vdev(module: str) -> ModuleType:
    """Returns the module of torch.vdev for a module of torch.cuda."""
    vdev = torch.get_device_module("vdev")
    return getattr(vdev, module) if module else vdev


def status_on_vdev(module: str, name: str) -> str:
    """Returns the cell for torch.vdev."""
    if reason := refused.reason(module, name):
        return f"refused: {reason}"
    if not module and name in REFUSED_AS_NOT_IMPLEMENTED:
        return "refused: allocator"
    if name in REFUSED_WITH.get(module, {}):
        argument, key = REFUSED_WITH[module][name]
        return f"refused with {argument}: {key}"
    if not module and name in RENAMED:
        return f"`{RENAMED[name]}`"
    return "yes" if hasattr(of_vdev(module), name) else "missing"


def status_in_pose(module: str, name: str) -> str:
    """Returns the cell for cards in pose."""
    if name in REFUSED_WITH.get(module, {}):
        return f"refused with {REFUSED_WITH[module][name][0]}"
    return "refused" if name in REFUSED_IN_POSE.get(module, ()) else "yes"


def table(module: str) -> list[str]:
    """Returns the lines of the table of a module."""
    title = f"torch.cuda.{module}" if module else "torch.cuda"
    lines = [f"| {title} | torch.musa | torch.npu | torch.vdev | in pose |", "|---|---|---|---|---|"]
    for name in names(module):
        others = (device.counterpart(module, name) for device in (MUSA, NPU))
        ours = (status_on_vdev(module, name), status_in_pose(module, name))
        lines.append("| " + " | ".join([f"`{name}`", *others, *ours]) + " |")
    return lines


def page() -> str:
    """Returns the text of docs/device.md."""
    parts = [TEXT, "## torch.cuda\n", "\n".join(table("")) + "\n"]
    parts.append(wrapped(", ".join(f"`torch.cuda.{module}`" for module in REPEATED) + REPEATED_TEXT))
    for module in OWN:
        parts += [f"## torch.cuda.{module}\n", "\n".join(table(module)) + "\n"]
    parts.append("## Why names are refused\n")
    allocator = (
        "The allocator of the cards cannot be replaced or switched off "
        "([memory.md](memory.md#pools-of-the-programs-own)). The error is a NotImplementedError."
    )
    explained = {**refused.REASONS, "allocator": allocator}
    reasons = [f"| {key} | {advice} |" for key, advice in sorted(explained.items())]
    parts.append("\n".join(["| | what to do instead |", "|---|---|", *reasons]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
