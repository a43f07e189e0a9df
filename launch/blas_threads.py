"""The threads of OpenBLAS in forked processes.

OpenBLAS, which comes with numpy, ends its threads at a fork. A call that sets another number of threads
starts them again, and they wait in a busy loop for work: with eight ranks on two cores that was a third of
the time of a short run. So the process that is forked has one thread, and a rank that needs no more makes no
call.
"""

import ctypes
import os
from collections.abc import Callable

# In the wheels of numpy, and elsewhere.
_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")

# For each library: how many threads it has, the call that sets the number, and the number at import.
_libraries: dict[str, tuple[Callable[[], int], Callable[[int], None], int]] = {}


def leave_one() -> None:
    """Leaves one thread to each OpenBLAS that is loaded. Forks call ``use`` then."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "openblas" in line}
    for path in paths - set(_libraries):
        library = ctypes.CDLL(path)
        for name in _NAMES:
            get = getattr(library, name.format("get"), None)
            put = getattr(library, name.format("set"), None)
            if get and put:
                _libraries[path] = (get, put, get())
                break
    if _is_free():
        for get, put, _ in _libraries.values():
            if get() != 1:
                put(1)


def use(threads: int | None) -> None:
    """Gives each OpenBLAS its threads, or as many as it had at import where ``threads`` is None."""
    if _is_free():
        for get, put, at_import in _libraries.values():
            if get() != (threads or at_import):
                put(threads or at_import)


def _is_free() -> bool:
    """Whether no variable gives a number to OpenBLAS itself, which it has read when it was loaded."""
    return not {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"} & set(os.environ)
