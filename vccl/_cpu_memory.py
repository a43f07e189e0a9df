"""CPU tensors that the peers of a host read and write in place, as they do a card's."""

_MIN_BYTES = 64 * 1024


def share_cpu_memory(min_bytes: int = _MIN_BYTES) -> None:
    """From now on, large CPU tensors of this process lie in memory that the ranks of its host can map.

    Collectives and messages of such tensors need no staging, and are nearly as fast as those of card tensors.
    Nothing else about the tensors changes. ``VCCL_SHARE_CPU=1`` does the same at import.

    Only groups and tensors made from now on profit. Other tensors are staged, as without this, and so is a
    collective for which the tensor of any rank is not shared. Ranks need not all call it. Calling it again
    changes `min_bytes`.

    A forked process gets a copy of what is shared at that moment, which takes it half a second a GiB, and
    shares nothing itself until it calls this function: neither it nor its parent sees what the other writes.
    Processes that are spawned, and commands that are run, have nothing of it.

    Args:
        min_bytes: storages of at least so many bytes are shared. Memory is handed out in pages of 4 KiB.

    Raises:
        ValueError: `min_bytes` is below 1.
        RuntimeError: a group of several ranks was made before this process shared memory, and is still there:
            it would go on staging. Or the system refuses the memory.
    """
    from vccl import _C

    if min_bytes < 1:
        raise ValueError(f"min_bytes must be at least 1, not {min_bytes}")
    groups = 0 if _C._has_shared_cpu_memory() else _C._groups_that_stage_cpu_tensors()
    if groups:
        raise RuntimeError(
            "share_cpu_memory() comes too late: the memory is handed to a group when that is made, and this "
            f"process has {groups} group(s) without it already. Call share_cpu_memory() before "
            "init_process_group(), or set VCCL_SHARE_CPU=1."
        )
    _C._share_cpu_memory(min_bytes)


def share_if_asked() -> None:
    """What ``VCCL_SHARE_CPU`` says, unless this process shares already.

    Raises:
        ValueError: the variable has a value that is not allowed.
    """
    from vccl import _C

    try:
        asked = _C._is_cpu_sharing_asked_for()
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if asked and not _C._is_sharing_cpu_memory():
        _C._share_cpu_memory(_MIN_BYTES)
