"""Changes to torch that nothing else could replace, each with its reason; docs/torch.md lists them.

Torch finds built-in backends by name and type in a dozen places, and third-party backends fall through. Every
function here changes one such place, for groups that vccl serves, and leaves other groups as they were.
"""

import argparse
import collections
import contextlib
import datetime
import enum
import functools
import hashlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from vccl._C import ProcessGroupVccl


def vccl_backends(group: Any) -> "list[ProcessGroupVccl]":
    """The backends of a group that are vccl's, out of the wrappers of TORCH_DISTRIBUTED_DEBUG=DETAIL.

    [] for what is no group, such as GroupMember.NON_GROUP_MEMBER.
    """
    from torch.distributed import distributed_c10d as c10d

    if not isinstance(group, c10d.ProcessGroup):
        return []
    found = []
    for device in group._device_types:
        backend = group._get_backend(device)
        if backend.name() != "vccl":
            continue
        while hasattr(backend, "wrapped_pg"):
            backend = backend.wrapped_pg
        if backend not in found:  # one backend may serve several devices
            found.append(backend)
    return found


def _replace(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorates what takes the place of ``owner.name``; it gets the original as its first argument."""
    original = getattr(owner, name)

    def decorate(replacement: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, staticmethod(call) if isinstance(vars(owner)[name], staticmethod) else call)

    return decorate


def patch_dlpack_device() -> None:
    """Lets ``torch.from_dlpack`` and friends take vdev tensors.

    ``Tensor.__dlpack_device__`` compares the device type with the literal "privateuse1", which no renamed
    backend ever has, and raises. The C++ side knows the device (kDLExtDev). Needed until torch asks for the
    backend's name there (pytorch/pytorch#195815).
    """
    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type != "vdev":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__


def patch_distributed() -> None:
    """Makes the changes to torch.distributed and DDP that groups need. Once, after vccl is registered."""
    patch_default_backend()
    patch_gloo_beside_vccl()
    patch_group_names()
    patch_sequence_numbers()
    patch_capabilities()
    patch_timeouts()
    patch_shrink_group()
    patch_monitored_barrier()
    patch_coalescing()
    patch_ddp()
    patch_all_gather_backward()
    patch_torchrun_abbreviations()


def patch_default_backend() -> None:
    """Makes vccl the default backend of a group that was not asked for it by name alone.

    A group's calls that belong to no device (its name, hooks, DDP's logging) go to its default backend, which
    torch sets by name: to GLOO for ``init_process_group()`` without arguments, and to none for
    "cpu:gloo,vdev:vccl". The group has no such backend then, and DDP's constructor raises. Needed until torch
    looks at the backends that it has made (pytorch/pytorch#189193, #179901).
    """
    from torch.distributed import distributed_c10d as c10d

    @_replace(c10d, "_new_process_group_helper")
    def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        group, store = original(*args, **kwargs)
        if type(group) is c10d.ProcessGroup and vccl_backends(group):
            group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return group, store


def patch_gloo_beside_vccl() -> None:
    """Keeps ``split_group`` from reading beyond a vector, in gloo's half of "cpu:gloo,vdev:vccl".

    A default group leaves its ranks empty in gloo's options, and gloo knows them by itself only for the first
    gloo group of the process: splitting a default group made after that ends in a segmentation fault. Such
    are those made again, and with TORCH_DISTRIBUTED_DEBUG=DETAIL, whose helpers are gloo's, all. Needed until
    ``ProcessGroupGloo::groupRanks`` no longer asks which group was first.
    """
    from torch.distributed import distributed_c10d as c10d

    @_replace(c10d, "_new_process_group_helper")
    def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        group, store = original(*args, **kwargs)
        if vccl_backends(group):
            for backend in map(group._get_backend, group._device_types):
                backend = getattr(backend, "wrapped_pg", backend)
                if backend.name() == "gloo" and not backend.options.global_ranks_in_group:
                    backend.options.global_ranks_in_group = list(range(group.size()))
        return group, store


def patch_group_names() -> None:
    """Makes the members of a group agree on its name, where torch makes it of their ranks.

    ``split_group``, ``shrink_group`` and ``new_group(use_local_synchronization=True)`` add the number of the
    groups that this rank is in, which differs from rank to rank once a group was made without some of them;
    the members then look for each other under different keys, and wait until the timeout. Here it is the
    number of the groups that were made of these ranks. Needed until pytorch/pytorch#189073 or #190431.
    """
    from torch.distributed import distributed_c10d as c10d

    made: weakref.WeakKeyDictionary[Any, collections.Counter] = weakref.WeakKeyDictionary()

    @_replace(c10d, "_hash_ranks_to_str")
    def _hash_ranks_to_str(original: Callable[..., str], ranks: list[int]) -> str:
        world = c10d._get_default_group()
        if not vccl_backends(world):
            return original(ranks)
        counts = made.setdefault(world, collections.Counter())
        key = "_".join(map(str, ranks))
        counts[key] += 1
        return hashlib.sha1(f"{key}_{counts[key]}".encode(), usedforsecurity=False).hexdigest()


def patch_sequence_numbers() -> None:
    """Lets a group of vccl tell how many collectives it has run.

    ``ProcessGroup`` passes the question on to its backend for four built-in backend types, and raises for
    every other. Needed until it asks the backend (pytorch/pytorch#190162, #124138). The DETAIL debug level
    asks the backend itself, and needs no change.
    """
    from torch.distributed import ProcessGroup

    @_replace(ProcessGroup, "_get_sequence_number_for_group")
    def _get_sequence_number_for_group(original: Callable[..., int], self: "ProcessGroup") -> int:
        backends = vccl_backends(self)
        return backends[0]._get_sequence_number_for_group() if backends else original(self)

    @_replace(ProcessGroup, "_set_sequence_number_for_group")
    def _set_sequence_number_for_group(original: Callable[..., None], self: "ProcessGroup") -> None:
        backends = vccl_backends(self)
        if not backends:
            return original(self)
        for backend in backends:
            backend._set_sequence_number_for_group()
        return None


def patch_capabilities() -> None:
    """Lets groups of gloo and of the fake backend be made where the default group has a device of vdev.

    With ``init_process_group(device_id=torch.device("vdev", 0))`` every further group is bound to that
    device, and torch raises for a backend that does not name its type; cuda and xpu stand in its tables. gloo
    refuses the tensors of vdev afterwards as before. Needed until the tables are open (for the fake backend
    pytorch/pytorch#195260, for gloo #184010).
    """
    from torch.distributed import Backend

    Backend.backend_capability["gloo"].append("vdev")
    original = Backend.register_backend.__func__

    # torch.testing registers the fake backend when it is imported, which may be at any time.
    @functools.wraps(original)
    def register_backend(cls: type, name: str, *args: Any, **kwargs: Any) -> None:
        original(cls, name, *args, **kwargs)
        devices = Backend.backend_capability[name.lower()]
        if name.lower() == "fake" and "vdev" not in devices:
            Backend.backend_capability["fake"] = [*devices, "vdev"]

    Backend.register_backend = classmethod(register_backend)
    if "FAKE" in Backend._plugins and "vdev" not in Backend.backend_capability["fake"]:
        Backend.backend_capability["fake"].append("vdev")


def patch_timeouts() -> None:
    """Lets ``_set_pg_timeout``, which DDP and TorchElastic's users call, reach vccl.

    It knows ProcessGroupNCCL and ProcessGroupGloo by class, and warns that it has changed nothing. Needed
    until it calls ``ProcessGroup.set_timeout``, as pytorch/pytorch#158128 offers.
    """
    from torch.distributed import distributed_c10d as c10d

    @_replace(c10d, "_set_pg_timeout")
    def _set_pg_timeout(
        original: Callable[..., None], timeout: datetime.timedelta, group: "ProcessGroup | None" = None
    ) -> None:
        backends = vccl_backends(group or c10d._get_default_group())
        with warnings.catch_warnings():
            if backends:
                warnings.filterwarnings("ignore", "Set timeout is now only supported")
            original(timeout, group)
        for backend in backends:
            backend._set_default_timeout(timeout)


def patch_shrink_group() -> None:
    """Lets ``shrink_group`` find vccl, and register what it makes as what it is.

    Where no device is bound it looks for the backend of cuda, then of the CPU, and raises for a group that
    serves vdev alone. It registers the new backend for one device only, as GLOO; the shrunk group of a vccl
    group would have lost the CPU or the cards, and be taken for gloo. It also takes the excluded ranks, which
    are ranks of the group, for global ones, so that a shrunk subgroup has wrong members. Needed until it goes
    by the group's backends and ranks (it came with pytorch/pytorch#164518).
    """
    from torch.distributed import distributed_c10d as c10d

    @_replace(c10d, "_validate_shrink_backend_requirements")
    def _validate_shrink_backend_requirements(original: Callable[..., Any], group_info: dict) -> Any:
        backends = vccl_backends(group_info["process_group"])
        return backends[0] if backends else original(group_info)

    @_replace(c10d, "_finalize_shrunk_group")
    def _finalize_shrunk_group(
        original: Callable[..., "ProcessGroup"], group_info: dict, excluded: set[int], backend: Any
    ) -> "ProcessGroup":
        if backend.name() == "vccl":
            ranks = c10d.get_process_group_ranks(group_info["process_group"])
            excluded = {ranks[rank] for rank in excluded}
        return original(group_info, excluded, backend)

    @_replace(c10d, "_create_shrunk_process_group")
    def _create_shrunk_process_group(
        original: Callable[..., "ProcessGroup"],
        new_backend: Any,
        ranks: list,
        metadata: dict,
        is_default: bool,
    ) -> "ProcessGroup":
        if new_backend.name() != "vccl":
            return original(new_backend, ranks, metadata, is_default)
        return _shrunk_group(new_backend, metadata, is_default)


def _shrunk_group(backend: "ProcessGroupVccl", metadata: dict, is_default: bool) -> "ProcessGroup":
    """The group of a shrunk backend, for the devices of the group that was shrunk, gloo's made anew."""
    from torch.distributed import distributed_c10d as c10d

    types = c10d.ProcessGroup.BackendType
    name = metadata["new_group_name"]
    store = c10d.PrefixStore(f"{name}/", metadata["store"].clone())
    rank, size = backend.rank(), backend.size()
    group = c10d.ProcessGroup(store, rank, size)
    if metadata["bound_device_id"] is not None:
        group.bound_device_id = metadata["bound_device_id"]
    served = {}
    for device, kind in c10d.BackendConfig(metadata["backend_config"]).get_device_backend_map().items():
        if kind == "vccl":
            group._register_backend(torch.device(device), types.CUSTOM, backend)
        elif kind == "gloo":
            gloo_store = c10d.PrefixStore(f"{device}/", store)
            gloo = c10d.ProcessGroupGloo(gloo_store, rank, size, timeout=backend.options._timeout)
            group._register_backend(torch.device(device), types.GLOO, gloo)
        else:
            continue  # it cannot be shrunk
        served[device] = kind
    metadata["backend_config"] = ",".join(f"{device}:{kind}" for device, kind in served.items())
    group._set_default_backend(types.CUSTOM)
    group._set_group_name(name)
    group._set_group_desc("default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk")
    return group


def patch_monitored_barrier() -> None:
    """Makes ``monitored_barrier`` vccl's own for its groups; see vccl/_monitored_barrier.py.

    Torch refuses every backend but gloo by name, which pytorch/pytorch#189070 begins to change. Needed until
    it calls the backend's, and for groups that serve no CPU tensors until it no longer calls the CPU's.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from vccl import _monitored_barrier

    # Numbers the groups of one name, which follow each other at one store.
    @_replace(c10d, "_register_pg_in_world")
    def _register_pg_in_world(
        original: Callable[..., None], pg: "ProcessGroup", *args: Any, **kw: Any
    ) -> None:
        original(pg, *args, **kw)
        if vccl_backends(pg):
            _monitored_barrier.prepare(pg)

    @_replace(c10d, "monitored_barrier")
    def monitored_barrier(
        original: Callable[..., None],
        group: "ProcessGroup | None" = None,
        timeout: datetime.timedelta | float | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        if vccl_backends(c10d._get_default_group() if group is None else group):
            return _monitored_barrier.monitored_barrier(group, timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    dist.monitored_barrier = c10d.monitored_barrier

    @_replace(c10d.ProcessGroup, "monitored_barrier")
    def of_group(original: Callable[..., None], self: "ProcessGroup", *args: Any, **kwargs: Any) -> None:
        if vccl_backends(self):
            return _monitored_barrier.monitored_barrier(self, *args, **kwargs)
        return original(self, *args, **kwargs)


def patch_coalescing() -> None:
    """Lets a group go on after an exception inside a coalescing manager.

    Torch's manager has no ``finally``: the group would go on collecting for ever, in torch's own list and in
    the backend, and every later collective would be held back without a word. So it is with every backend.
    Needed until the manager ends what it has begun.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    original = c10d._coalescing_manager

    @functools.wraps(original)
    @contextlib.contextmanager
    def _coalescing_manager(
        group: "ProcessGroup | None" = None, device: torch.device | None = None, async_ops: bool = False
    ) -> "Iterator[c10d._CoalescingManager]":
        entered = False
        try:
            with original(group, device, async_ops) as manager:
                entered = True
                yield manager
        except BaseException:
            group = group or c10d._get_default_group()
            backends = vccl_backends(group) if entered else []
            for backend in backends:
                backend._cancel_coalescing()
            if backends:
                c10d._world.pg_coalesce_state.pop(group, None)
            raise

    dist._coalescing_manager = c10d._coalescing_manager = _coalescing_manager


def patch_ddp() -> None:
    """Lets DDP take its bfloat16 hooks, and name the backend in its logging data.

    ``register_comm_hook`` refuses the hooks of that name without NCCL or XCCL (since pytorch/pytorch#63260),
    though every backend that reduces bfloat16 can run them. The logging data hold the name of the group's
    backend type, which is "custom" for every third-party backend. Needed until torch asks the backend.
    """
    from torch.nn.parallel import DistributedDataParallel

    @_replace(DistributedDataParallel, "_check_comm_hook")
    def _check_comm_hook(
        original: Callable[..., None], self: "DistributedDataParallel", hook: Callable[..., Any]
    ) -> None:
        device = torch.device(self.device_type)
        if callable(hook) and self.process_group._get_backend(device).name() == "vccl":
            hook = _renamed(hook)
        original(self, hook)

    @_replace(DistributedDataParallel, "_get_ddp_logging_data")
    def _get_ddp_logging_data(
        original: Callable[..., dict], self: "DistributedDataParallel"
    ) -> dict[str, Any]:
        data = original(self)
        if data.get("backend_name") == "custom" and vccl_backends(self.process_group):
            data["backend_name"] = "vccl"
        return data


def _renamed(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in that has the hook's signature and not its name; it is checked, and never called."""

    @functools.wraps(hook)
    def stand_in(state: object, bucket: "GradBucket") -> Any:
        return hook(state, bucket)

    stand_in.__name__ = f"{getattr(hook, '__name__', 'hook')} for vccl"
    return stand_in


def patch_all_gather_backward() -> None:
    """Lets ``torch.distributed.nn.functional._all_gather_base`` be differentiated.

    Its backward raises "Backend not supported!" unless the group is named nccl or xccl; all it needs is
    reduce_scatter. pytorch/pytorch#168213 added xccl. Needed until torch asks what the backend can do. Costs
    an import of 3 ms. It must come before the first group: the module's functions keep the default group of
    the moment as a default argument, and its threads would live until the interpreter is gone.
    """
    import torch.distributed as dist
    from torch.distributed.nn import functional

    @_replace(functional._AllGatherBase, "backward")
    def backward(original: Callable[..., tuple], ctx: Any, grad_output: torch.Tensor) -> tuple:
        group = ctx.group or dist.group.WORLD
        if not vccl_backends(group):
            return original(ctx, grad_output)
        rows = grad_output.shape[0] // dist.get_world_size(group)
        grad_input = grad_output.new_empty((rows, *grad_output.shape[1:]))
        dist.reduce_scatter_tensor(grad_input, grad_output.contiguous(), group=group)
        return None, grad_input, None


def patch_torchrun_abbreviations() -> None:
    """Lets torchrun pass on a script's own ``--max``, as in ``torchrun -m vccl.bench all_reduce --max 64M``.

    Python's argparse, before 3.12.7, looks for abbreviations of torchrun's options in the script's arguments
    too, and exits where one has several expansions (python/cpython#58573, pytorch/pytorch#120601, #196064);
    ``--max-restarts`` and ``--max_restarts`` are two. Does nothing in a process that is not torchrun. Needed
    while Python 3.11 is supported.
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
