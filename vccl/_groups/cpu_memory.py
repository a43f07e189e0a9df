"""Lets the peers of a host read and write CPU tensors in place, as they do with the tensors of cards."""

_MIN_BYTES = 64 * 1024


def share_cpu_memory(min_bytes: int = _MIN_BYTES) -> None:
    """Puts large CPU tensors that are made from now on into memory that the ranks of the host can map.

    Collectives and messages of such tensors need no staging, and are nearly as fast as with card tensors.
    Nothing else about the tensors changes. ``VCCL_SHARE_CPU=1`` does the same at import.

    Only groups and tensors that are made from now on profit. Other tensors are staged, as without this
    call. A collective is staged if the tensor of any rank is not shared. Not all ranks need to call this
    function. A second call changes `min_bytes`.

    A forked process gets a copy of the memory that is shared at that moment. The copy takes half a second for
    each GiB, and neither process sees what the other writes. The forked process shares no memory itself until
    it calls this function. Processes that are spawned, and commands that are run, get no copy.

    Args:
        min_bytes: storages of at least so many bytes are shared. Memory is handed out in pages of 4 KiB.

    Raises:
        ValueError: `min_bytes` is below 1.
        RuntimeError: the system refuses the memory, or a group of several ranks was made before this process
            shared memory and is still there. That group would go on staging.
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
    """Shares CPU memory if ``VCCL_SHARE_CPU`` asks for it and this process does not share it already.

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
