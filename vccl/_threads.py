"""What the search for deadlocks and the diagnosis of hangs have to know of the Python threads."""

import sys
import threading
from types import FrameType

# Functions that a thread runs for all its life, and that call no collective: (end of the file's name,
# function).
_HARMLESS = (
    (
        "multiprocessing/queues.py",
        "_feed",
    ),  # every multiprocessing.Queue has such a thread, so the workers of a DataLoader do
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    ("tqdm/_monitor.py", "run"),
    ("testing/rank.py", "_obey"),
)


def all_blocked(blocked: list[int]) -> bool:
    """Returns whether every thread that runs Python is harmless, or blocked in a collective.

    A thread of C++ that runs Python only when another thread asks for it, such as autograd's, has no Python
    frame in between. The thread that asks is one of those that are looked at. Threads of torch's RPC are
    different, because other processes ask them: while an RPC agent runs, the answer is False.

    Args:
        blocked: the threads that are blocked in a collective, by ``threading.get_ident()``.
    """
    if _serves_rpc():
        return False
    known = {*blocked, threading.get_ident()}
    return all(ident in known or _is_harmless(frame) for ident, frame in sys._current_frames().items())


def _is_harmless(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if any(code.co_name == name and code.co_filename.endswith(file) for file, name in _HARMLESS):
            return True
        frame = frame.f_back
    return False


def _serves_rpc() -> bool:
    rpc = sys.modules.get("torch.distributed.rpc")
    return rpc is not None and rpc.is_available() and rpc.api._is_current_rpc_agent_set()


def stacks() -> str:
    """Returns the stacks of all other threads in the form in which faulthandler writes them."""
    lines = []
    for ident, innermost in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        lines.append(f"Thread {ident:#x} (most recent call first):")
        frame: FrameType | None = innermost
        while frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or 0} in {code.co_name}')
            frame = frame.f_back
    return "\n".join([*lines, ""])
