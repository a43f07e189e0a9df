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
    ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"),
    ("TORCH_NCCL_RETHROW_CUDA_ERRORS",),
)
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
READ = {
    name
    for names in (
        _BLOCKING_WAIT,
        _HIGH_PRIORITY,
        _ERROR_HANDLING,
        _DESYNC_DEBUG,
        _HEARTBEAT,
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


def _is_set(names: tuple[str, ...]) -> bool:
    """Returns whether the variable says yes. Raises ValueError for a text that torch does not take either."""
    name, text = _first_set(names)
    if text is None:
        return False
    if text.lower() not in _FLAGS:
        raise ValueError(f"{name} is {text!r}; allowed are {', '.join(_FLAGS)}")
    return _FLAGS[text.lower()]


def _error_handling() -> tuple[bool, bool]:
    """Returns whether a failed operation aborts the group, and whether it ends the process."""
    name, text = _first_set(_ERROR_HANDLING)
    if text is not None and text not in _HANDLING:
        raise ValueError(f"{name} is {text!r}; allowed are {', '.join(_HANDLING)}")
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
        raise ValueError(f"{name} is {text!r}; allowed are 0 to {_MOST_SECONDS} seconds")


def apply(options: "ProcessGroupVccl.Options") -> None:
    """Changes the options of a group as the variables say. Raises ValueError for a wrong value."""
    options.blocking_wait |= _is_set(_BLOCKING_WAIT)
    options.is_high_priority_stream |= _is_set(_HIGH_PRIORITY)
    abort, end = _error_handling()
    for names in _SWITCHES_WITHOUT_SUBJECT:
        _is_set(names)
    _check_heartbeat()
    # A rank that waits on the host is told of the error, so ProcessGroupNCCL does nothing else there.
    options._abort_after_failure = abort and not options.blocking_wait
    options._end_after_failure = end and not options.blocking_wait
