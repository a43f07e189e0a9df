"""Is ``torch.vdev``: it chooses and describes the cards of this process as ``torch.cuda`` does with GPUs."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from vccl import _C
from vccl._cards.process_sharing import ipc_collect

from . import _gpu_trace as _gpu_trace  # torch's tracer looks for it here
from . import amp, comm, legacy_types, memory, nccl, nvtx, profiler, properties, refused, tunable
from ._device import DeviceLike, current_index, index_of
from .errors import AcceleratorError, CudaError, DeferredCudaCallError, OutOfMemoryError
from .graphs import (
    VDEVGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from .memory import *  # noqa: F403
from .properties import DeviceProperties
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _launch_host_func,
    _sleep,
    clear_errors,
    current_stream,
    default_stream,
    get_stream_from_external,
    get_sync_debug_mode,
    set_stream,
    set_sync_debug_mode,
    stream,
    synchronize,
)

__all__ = [
    "AcceleratorError",
    "CudaError",
    "DeferredCudaCallError",
    "DeviceProperties",
    "Event",
    "ExternalStream",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "VDEVGraph",
    "_launch_host_func",
    "_lazy_call",
    "_sleep",
    "amp",
    "can_device_access_peer",
    "clear_errors",
    "comm",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "has_half",
    "has_magma",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "nccl",
    "nvtx",
    "profiler",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "tunable",
]
__all__ += memory.__all__

has_half = True
has_magma = False  # a library for GPUs
get_amp_supported_dtype = amp.get_amp_supported_dtype


def is_available() -> bool:
    """Returns whether this process sees a card. Never raises, and uses no card."""
    return _C.device_count() > 0


def device_count() -> int:
    """Returns how many cards this process sees (``VDEV_DEVICE_COUNT``, ``VDEV_VISIBLE_DEVICES``)."""
    return _C.device_count()


# _lazy_init() sets it.
_program_uses_cards = False


def is_initialized() -> bool:
    """Returns whether the program has chosen a card (``set_device``) or used one (by a tensor or stream).

    As in torch.cuda, it does not count if a process group connects to its card
    (``init_process_group(device_id=...)``) and meets there in a barrier. ``init_device_mesh`` asks this
    function, and sets the card of LOCAL_RANK if the program has not chosen one.
    """
    return _program_uses_cards and not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def _lazy_init() -> None:
    # Torch calls this once before a program's first call that makes something on the device, or that sets
    # the current card. It does not call this for what C++ makes.
    global _program_uses_cards
    _C.lazy_init()
    _program_uses_cards = True


def _lazy_call(callable: Callable[[], object], **kwargs: object) -> None:
    """Calls ``callable`` at once. Frameworks use it for calls that touch the generators of a device.

    ``torch.cuda`` keeps such calls until CUDA is initialised, and its keywords ``seed`` and ``seed_all``
    order them. Cards need no initialisation, so the keywords mean nothing here.
    """
    callable()


def init() -> None:
    """Raises RuntimeError if this process cannot use cards. Makes no card, because the first use makes it."""
    _lazy_init()


def current_device() -> int:
    """Returns the current card of the calling thread."""
    return current_index()


def set_device(device: DeviceLike) -> None:
    """Makes a card the calling thread's current card. A negative index changes nothing.

    Raises:
        RuntimeError: there is no such card.
        ValueError: the device is of another type, or has no index.
    """
    index = index_of(device, optional=False)
    if index >= 0:
        _lazy_init()
        _C.set_device(index)


class device(contextlib.AbstractContextManager):
    """Makes a card current inside a ``with`` block. A negative index or None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Makes the card of a tensor or storage current in a ``with`` block, and ignores other devices."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "vdev" else None)


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns what ``torch.cuda.get_device_properties`` does, and physical_index, of a card.

    total_memory is in bytes, and multi_processor_count says how many cores the card computes with.
    """
    _lazy_init()
    return properties.properties(index_of(device))


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the name of the card's model."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the version of the cards' features as (major, minor), which is the same for every card.

    Raises:
        RuntimeError: there is no such card.
    """
    _C.check_device(index_of(device))
    return properties.CAPABILITY


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Returns whether one card can use the other's memory: True for every two cards, which differ.

    Raises:
        RuntimeError: there is no such card.
    """
    index, peer = index_of(device, optional=False), index_of(peer_device, optional=False)
    _C.check_device(index)
    _C.check_device(peer)
    return index != peer  # every card lies in memory that the process maps


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True, because the cards run the CPU's kernels, which have bfloat16."""
    return True


def is_tf32_supported() -> bool:
    """Returns False, because the cards run the CPU's kernels, which compute in float32."""
    return False


def get_arch_list() -> list[str]:
    """Returns an empty list: torch has kernels of the CPU for the cards, and none for a model of GPU."""
    return []


def get_gencode_flags() -> str:
    """Returns an empty text, because no compiler of GPU code is called for the cards."""
    return ""


globals().update(legacy_types.types())
refused.install(sys.modules[__name__])


def register() -> None:
    """Makes this module ``torch.vdev``, and ``vdev`` a device of torch. Call this once."""
    from vccl import _torch_patches
    from vccl._cards import copies
    from vccl._inductor import registration
    from vccl.vdev import higher_order_operators

    torch.utils.rename_privateuse1_backend("vdev")
    torch._register_device_module("vdev", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _register_submodules()
    copies.install()
    _C.register_graphs()
    higher_order_operators.register()
    _torch_patches.apply_to_device()
    registration.register()
    # The threads of streams must stop while the interpreter is still whole.
    atexit.register(_C.shutdown)


def _register_submodules() -> None:
    """Lets programs import the modules under torch's name: ``from torch.vdev.amp import autocast``."""
    for name, module in list(globals().items()):
        if isinstance(module, ModuleType) and module.__name__ in (f"vccl.vdev.{name}", f"torch.vdev.{name}"):
            sys.modules[f"torch.vdev.{name}"] = module


def _get_generator(device: torch.device) -> torch.Generator:
    return _C.default_generator(index_of(device))


def __getattr__(name: str) -> Any:
    # Other devices of torch have these as attributes. Their values change while the process runs.
    # torch.utils.checkpoint saves the states of the cards' generators only if `_initialized` is true.
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return tuple(_C.default_generator(index) for index in range(device_count()))
    raise AttributeError(f"module 'torch.vdev' has no attribute '{name}'")
