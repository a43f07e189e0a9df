"""Changes to torch that nothing else could replace, each with its reason."""

import argparse
import enum
import functools
import os
import sys
from typing import Any

import torch


def patch_dlpack_device() -> None:
    """Lets ``torch.from_dlpack`` and friends take vdev tensors.

    ``Tensor.__dlpack_device__`` compares the device type with the literal "privateuse1", which no renamed
    backend ever has, and raises. The C++ side knows the device (kDLExtDev). Needed until torch asks for the
    backend's name there.
    """
    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type != "vdev":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__


def patch_default_backend() -> None:
    """Makes vccl the default backend of a group that was not asked for it by name alone.

    A group's calls that belong to no device (its name, hooks, DDP's logging) go to its default backend, which
    torch sets by name: to GLOO for ``init_process_group()`` without arguments, and to none for
    "cpu:gloo,vdev:vccl". The group has no such backend then, and DDP's constructor raises. Needed until
    ``_new_process_group_helper`` looks at the backends that it has made.
    """
    from torch.distributed import distributed_c10d as c10d

    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        group, store = original(*args, **kwargs)
        if type(group) is c10d.ProcessGroup:
            backends = (group._get_backend(device) for device in group._device_types)
            if any(backend.name() == "vccl" for backend in backends):
                group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return group, store

    c10d._new_process_group_helper = _new_process_group_helper


def patch_torchrun_abbreviations() -> None:
    """Lets torchrun pass on a script's own ``--max``, as in ``torchrun -m vccl.bench all_reduce --max 64M``.

    Python's argparse, before 3.12.7, looks for abbreviations of torchrun's options in the script's arguments
    too, and exits where one has several expansions (gh-58573); ``--max-restarts`` and ``--max_restarts`` are
    two. Does nothing in a process that is not torchrun. Needed while Python 3.11 is supported.
    """
    if os.path.basename(sys.argv[0]) != "torchrun" or sys.version_info >= (3, 12, 7):
        return
    from torch.distributed import run

    original = run.get_args_parser

    @functools.wraps(original)
    def get_args_parser() -> argparse.ArgumentParser:
        parser = original()
        expansions = parser._get_option_tuples

        def unambiguous(option: str) -> list:
            found = expansions(option)
            return found if len(found) == 1 else []

        parser._get_option_tuples = unambiguous
        return parser

    run.get_args_parser = get_args_parser
