"""Registers the backend ``vccl`` with ``torch.distributed``, and makes its process groups."""

import atexit
import copy
import datetime
import functools
import pathlib
import warnings
from typing import TYPE_CHECKING

import torch.distributed as dist

from vccl import _torch_patches
from vccl._device_type import device_type
from vccl._groups import cpu_memory
from vccl._groups.backends import vccl_backends
from vccl._libraries import use_found_libraries

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from vccl._C import ProcessGroupVccl

# How long a process that ends without destroy_process_group() waits for the collectives it has launched.
_PATIENCE_AT_EXIT = datetime.timedelta(seconds=2)


def register() -> None:
    """Makes ``init_process_group("vccl")`` known, for vdev and the CPU. Further calls do nothing."""
    from vccl import _C

    if not dist.is_available() or "VCCL" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("vccl", _create, extended_api=True, devices=[device_type(), "cpu"])
    _torch_patches.apply_to_distributed()
    _C._write_addresses_as_numbers()
    package = pathlib.Path(__file__).parent
    beside = [package.parent / name for name in ("launch", "vccl_entry")]
    _C._set_library_folders([f"{folder}/" for folder in (package, *beside)])


def _create(
    options: "_DistributedBackendOptions", pg_options: "ProcessGroupVccl.Options | None"
) -> "ProcessGroupVccl":
    """Makes the process group of one rank.

    Raises:
        TypeError: ``pg_options`` is not a ``vccl.Options``.
        NotImplementedError: the group is to be made without ranks, which join it later.
    """
    from vccl._C import ProcessGroupVccl

    if getattr(options, "enable_reconfigure", False):  # which torch has had since 2.14
        raise NotImplementedError(
            "backend vccl makes a group with all of its ranks: it does not support enable_reconfigure. "
            "split_group and shrink_group make groups of fewer ranks."
        )

    if pg_options is None:
        pg_options = ProcessGroupVccl.Options()
    elif not isinstance(pg_options, ProcessGroupVccl.Options):
        raise TypeError(
            f"backend vccl takes pg_options of type vccl.Options, not {type(pg_options).__name__}"
        )
    else:
        pg_options = copy.copy(pg_options)  # the caller may use the same object for another group
    pg_options._timeout = options.timeout
    pg_options.group_name = dist.distributed_c10d.GroupName(options.group_id)
    pg_options.global_ranks_in_group = options.global_ranks_in_group
    # The list is empty for the default group alone.
    pg_options._call = "new_group" if options.global_ranks_in_group else "init_process_group"
    return make_group(options.store, options.group_rank, options.group_size, pg_options)


def make_group(
    store: "dist.Store", rank: int, size: int, options: "ProcessGroupVccl.Options"
) -> "ProcessGroupVccl":
    """Makes the process group of one rank, whose options name the group, its ranks and its timeout."""
    from vccl import _C
    from vccl._torch_patches.distributed import group_descriptions
    from vccl.faults import environment as faults

    options.group_desc = group_descriptions.description.get()
    # The list is empty for the default group, which holds every rank.
    options.global_ranks_in_group = list(options.global_ranks_in_group or range(size))
    options._origin = _origin()
    _prepare_process()
    ranks = options.global_ranks_in_group
    faults.follow(ranks[rank] if 0 <= rank < len(ranks) else rank)
    _C._serve_stacks()  # a forked process has its own memory for them
    cpu_memory.share_if_asked()  # a forked process shares nothing yet, whatever its parent did
    group = _C.ProcessGroupVccl(store, rank, size, options, _groups_that_know_ranks())
    _answer_clients_of_nccl()
    return group


def _origin() -> str:
    """Returns the identity of the default group, which all ranks of the job have in common.

    Returns an empty text where no backend of the default group is vccl's: then nothing is known that the
    ranks have in common.
    """
    default = dist.distributed_c10d._world.default_pg
    return min((backend._id for backend in vccl_backends(default)), default="") if default else ""


def _groups_that_know_ranks() -> "list[ProcessGroupVccl]":
    """Returns the groups of this process that can tell which ranks are dead.

    That is the default group if it has the backend vccl, and otherwise every group that has it.
    """
    world = dist.distributed_c10d._world
    if world.default_pg is None:
        return []
    default = vccl_backends(world.default_pg)
    return default or [backend for group in world.pg_map for backend in vccl_backends(group)]


@functools.cache
def _prepare_process() -> None:
    """Prepares this process for its first group."""
    from vccl import _C

    use_found_libraries()
    # Python runs this before the device's own hook, which was registered earlier, so streams still work when
    # the groups close.
    atexit.register(_C._shutdown_process_groups, _PATIENCE_AT_EXIT)


@functools.cache
def _answer_clients_of_nccl() -> None:
    """Answers tools that watch NCCL from now on, if the environment asks for it."""
    from vccl import _C

    if address := _C._ras_address():
        from vccl.top import ras

        try:
            ras.serve(address)
        except OSError as error:
            warnings.warn(
                f"VCCL_RAS_ADDR is {address!r}, where this process cannot listen ({error}). It answers no "
                "client of NCCL's RAS.",
                stacklevel=2,
            )
