"""Tells where the memory of the cards went: snapshots of the allocators, and the history of allocations.

The functions have the names, arguments and results of those in ``torch.cuda.memory``. So torch's memory
viewer (``torch/cuda/_memory_viz.py`` and pytorch.org/memory_viz) reads the snapshots.
"""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch

from vccl import _C

from ._device import DeviceLike

Frame = dict[str, Any]
PoolId = tuple[int, int]


def _record_memory_history(enabled: str | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Records from now on where memory is allocated, for all cards of this process.

    The arguments are those of ``record_history``. If ``enabled`` is a bool, they are those of
    ``record_history_legacy``, as in torch.cuda.
    """
    if isinstance(enabled, bool):
        record_history_legacy(enabled, *args, **kwargs)
    else:
        record_history(enabled, *args, **kwargs)


def record_history_legacy(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: DeviceLike = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records as ``record_history`` does, with the arguments that torch's first versions had.

    Args:
        enabled: whether to record.
        record_context: whether live memory has a traceback.
        trace_alloc_max_entries: max_entries.
        trace_alloc_record_context: whether the events of allocations have a traceback, too.
        record_context_cpp: whether tracebacks have frames of C++.
        device, clear_history, compile_context, global_record_annotations, skip_actions: as there.
    """
    record_history(
        "all" if enabled else None,
        "alloc" if trace_alloc_record_context else "state" if record_context else None,
        "all" if record_context_cpp else "python",
        trace_alloc_max_entries,
        device,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
    )


def record_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records from now on where memory is allocated, for all cards of this process.

    Args:
        enabled: ``"state"`` notes where live memory was allocated, ``"all"`` also keeps a history of events,
            and None ends the recording and forgets the history.
        context: which memory and events get a traceback: ``"state"`` live memory, ``"alloc"`` also the events
            of allocations, ``"all"`` also the events of frees; None gives none.
        stacks: ``"python"`` for frames of Python and TorchScript, ``"all"`` for frames of C++ as well.
        max_entries: how many events are kept for each card. Older events are forgotten.
        device: not used, as in torch.cuda.
        clear_history: whether earlier events are forgotten.
        compile_context: has to be False.
        global_record_annotations: has to be False.
        skip_actions: events that are left out: ``"alloc"``, ``"free_requested"``, ``"free_completed"``,
            ``"segment_alloc"``, ``"segment_free"``, ``"oom"``, ``"snapshot"``.

    Raises:
        RuntimeError: an argument has another value.
        NotImplementedError: for ``compile_context`` and ``global_record_annotations``.
    """
    for name, value in (
        ("compile_context", compile_context),
        ("global_record_annotations", global_record_annotations),
    ):
        if value:
            raise NotImplementedError(f"_record_memory_history({name}=True): the cards do not record that.")
    if enabled is not None and stacks == "all" and not _finds_frames_of_cpp():
        warnings.warn(
            "The memory history has frames of Python alone, because the program addr2line is missing, which "
            'finds the names of those of C++. Install it (package binutils), or pass stacks="python".',
            stacklevel=3,
        )
        stacks = "python"
    if max_entries < 0:
        raise RuntimeError(f"max_entries is {max_entries}; expected 0 or more")
    _C._record_memory_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


def _finds_frames_of_cpp() -> bool:
    """Returns whether torch can name frames of C++: by addr2line, or as TORCH_SYMBOLIZE_MODE says."""
    if os.environ.get("TORCH_SYMBOLIZE_MODE", "addr2line") != "addr2line":
        return True
    return shutil.which(os.environ.get("TORCH_ADDR2LINE_BINARY", "addr2line")) is not None


cast(Any, _record_memory_history).__signature__ = inspect.signature(record_history)


def memory_snapshot(mempool_id: PoolId | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Returns the segments of all cards, with their blocks and where these were allocated.

    Args:
        mempool_id: the pool of a graph (``graph_pool_handle()``, ``VDEVGraph.pool()``), to see its segments
            alone.
        include_traces: whether the snapshot counts as an event of the history.
    """
    return take_snapshot(mempool_id, include_traces)["segments"]


def take_snapshot(mempool_id: PoolId | None, include_traces: bool) -> dict[str, Any]:
    """Returns the whole snapshot, of one pool or, for None and (0, 0), of all."""
    pool = None if mempool_id is None or tuple(mempool_id) == (0, 0) else mempool_id[1]
    snapshot = _C._memory_snapshot(pool, include_traces)
    snapshot["external_annotations"] = []
    snapshot["allocator_settings"] = {
        "PYTORCH_ALLOC_CONF": torch._C._accelerator_getAllocatorSettings(),
        "expandable_segments": False,
    }
    return snapshot


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns the segments of all cards, and the history of each card.

    Args:
        device: not used, as in torch.cuda.
        augment_with_fx_traces: whether frames of generated FX code name the model's own code, too.
    """
    snapshot = take_snapshot(None, True)
    if augment_with_fx_traces:
        torch._utils._augment_memory_snapshot_stack_traces(cast(Any, snapshot))  # changes it in place
    return snapshot


def _dump_snapshot(
    filename: str | os.PathLike = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes ``_snapshot()`` to a pickle file, which pytorch.org/memory_viz shows."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _allocation_traceback(data_ptr: int) -> list[Frame] | None:
    """Returns where the live memory at ``data_ptr`` was allocated, and None if that is not known.

    ``data_ptr`` is where a storage begins (``tensor.untyped_storage().data_ptr()``).
    """
    return _C._allocation_traceback(data_ptr)


def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Has ``observer`` called before OutOfMemoryError is raised, for instance to dump a snapshot.

    It gets the index of the card, and three figures in bytes: what was asked for, the card's capacity, and
    what of it is free. It is called for the rest of the process's life, as in torch.cuda.
    """
    _C._attach_out_of_memory_observer(observer)


def _set_memory_metadata(metadata: str) -> None:
    """Sets a text that events of the history carry from now on, as ``user_metadata``."""
    _C._set_memory_metadata(metadata)


def _get_memory_metadata() -> str:
    """Returns the text of ``_set_memory_metadata()``."""
    return _C._get_memory_metadata()
