"""NCCL's environment variables that become options of a group.

Those of the transport and of the flight recorder are read in ``transport/variables.cpp``.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vccl._C import ProcessGroupVccl

# Each with its older name, which torch still takes where the newer one is unset.
_BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_HIGH_PRIORITY = ("TORCH_NCCL_HIGH_PRIORITY",)
_ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_DESYNC_DEBUG = ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
# These are about threads and measurements that vccl does without: their values are checked, and no more.
_SWITCHES_WITHOUT_SUBJECT = (
    ("TORCH_NCCL_ENABLE_MONITORING",),
    ("TORCH_NCCL_RETHROW_CUDA_ERRORS",),
)
_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING")
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
READ = {
    name
    for names in (
        _BLOCKING_WAIT,
        _HIGH_PRIORITY,
        _ERROR_HANDLING,
        _DESYNC_DEBUG,
        _HEARTBEAT,
        _TIMING,
        *_SWITCHES_WITHOUT_SUBJECT,
    )
    for name in names
}

# The texts that torch takes for yes and for no, in either case.
_FLAGS = {
    **dict.fromkeys(("y", "yes", "1", "t", "true"), True),
    **dict.fromkeys(("n", "no", "0", "f", "false"), False),
}
# What TORCH_NCCL_ASYNC_ERROR_HANDLING asks for: to abort the group, to end the process.
_HANDLING = {"0": (False, False), "1": (True, True), "2": (True, False), "3": (False, True)}
_MOST_SECONDS = 2**31 - 1


def _first_set(names: tuple[str, ...]) -> tuple[str, str | None]:
    """Returns the name and the value of the first variable that is set."""
    for name in names:
        if name in os.environ:
            return name, os.environ[name]
    return names[0], None


def _invalid(name: str, text: str, allowed: str) -> RuntimeError:
    """Returns the error for a wrong value: its type and its first words are those of ProcessGroupNCCL."""
    return RuntimeError(f"Invalid value for environment variable: {name} is {text!r}; allowed are {allowed}")


def _is_set(names: tuple[str, ...]) -> bool:
    """Returns whether the variable says yes. Raises RuntimeError for a text that torch does not take."""
    name, text = _first_set(names)
    if text is None:
        return False
    if text.lower() not in _FLAGS:
        raise _invalid(name, text, ", ".join(_FLAGS))
    return _FLAGS[text.lower()]


def _error_handling() -> tuple[bool, bool]:
    """Returns whether a failed operation aborts the group, and whether it ends the process."""
    name, text = _first_set(_ERROR_HANDLING)
    if text is not None and text not in _HANDLING:
        raise _invalid(name, text, ", ".join(_HANDLING))
    # torchrun, and vrun with it, sets 1 for every rank. Nobody has asked for it there.
    if text == "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        text = None
    # The other ranks are named in any case. Torch ends the process, too.
    if _is_set(_DESYNC_DEBUG) and text in (None, "0"):
        text = "3"
    return _HANDLING[text or "0"]


def _check_heartbeat() -> None:
    name, text = _first_set(_HEARTBEAT)
    if text is not None and not (text.isdecimal() and int(text) <= _MOST_SECONDS):
        raise _invalid(name, text, f"0 to {_MOST_SECONDS} seconds")


def asks_for_times() -> bool:
    """Returns whether the times of operations are to stand in ``_dump_nccl_trace()``."""
    return _is_set(_TIMING)


def apply(options: "ProcessGroupVccl.Options") -> None:
    """Changes the options of a group as the variables say. Raises RuntimeError for a wrong value."""
    options.blocking_wait |= _is_set(_BLOCKING_WAIT)
    options.is_high_priority_stream |= _is_set(_HIGH_PRIORITY)
    abort, end = _error_handling()
    for names in _SWITCHES_WITHOUT_SUBJECT:
        _is_set(names)
    asks_for_times()
    _check_heartbeat()
    # A rank that waits on the host is told of the error, so ProcessGroupNCCL does nothing else there.
    options._abort_after_failure = abort and not options.blocking_wait
    options._end_after_failure = end and not options.blocking_wait
