"""Whether a test has left a rank as it was. Only then does another test run on it.

What every test changes is put back: groups, random numbers, the current card and stream, memory that is only
cached. What a test should not change is compared, and a difference means that the rank is replaced.
"""

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from vccl.launch import forks

# Threads that torch, the cards and the backend keep for good, by the beginnings of their names.
_KEPT_THREADS = ("pt_", "vdev", "vccl", "cuda", "tqdm_monitor")
# Descriptors that they keep, by the beginnings of what they lead to: the memory of cards and of peers.
_KEPT_DESCRIPTORS = (
    "/memfd:",
    "/dev/shm/",
    "/dev/nvidia",
    "anon_inode:[eventfd]",
    "anon_inode:[timerfd]",
    "/proc/",
)
# pytest sets and removes the first, and the import of Inductor sets the second.
_OWN_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
# Seconds in which threads and processes that are about to end have to be gone.
_SECONDS_TO_END = 0.5
# Bytes of a card's memory that may stay reserved between tests.
_CACHED = 64 << 20


class Snapshot:
    """The state of a process before a test."""

    def __init__(self, device: str) -> None:
        """Notes it. ``device`` is the type of the cards of the ranks."""
        self._device = device
        self._compared = _state()
        self._descriptors = _descriptors()
        self._native_threads = _native_threads()
        self._python_threads = set(threading.enumerate())
        self._children = _children()
        self._random = _random_state()
        self._allocated = _allocated(device)

    def restore(self) -> list[str]:
        """Puts back what every test changes. Returns what the test has left besides, each as a short text."""
        broken = [*_leave_groups()]
        left = [*_finish_streams(self._device), *self._differences()]
        if left:
            # An exception that was caught holds the frames of a test, and these what the test has made.
            sys.last_type = sys.last_value = sys.last_traceback = None
            gc.collect()
            until = time.monotonic() + _SECONDS_TO_END
            while left and time.monotonic() < until:
                left = [*_finish_streams(self._device), *self._differences()]
                time.sleep(0.01)
        left += broken
        if not left:
            _set_random_state(self._random)
            _shrink_cache(self._device)
        return left

    def _differences(self) -> list[str]:
        found = []
        now = _state()
        for name, before in self._compared.items():
            if now[name] != before:
                found.append(_changed(name, before, now[name]))
        for thread in set(threading.enumerate()) - self._python_threads - _threads_of_inductor():
            # Python knows a thread of C++, such as autograd's, when it has run a function of Python.
            if not thread.name.startswith((*_KEPT_THREADS, "Dummy-")):
                found.append(f"the thread {thread.name!r}")
        for _, called in sorted(_native_threads().items() - self._native_threads.items()):
            found.append(f"a thread of C++ that is called {called!r}")
        descriptors = _descriptors()
        for descriptor, target in sorted(descriptors.items() - self._descriptors.items()):
            found.append(f"the descriptor {descriptor} of {target}")
        for descriptor in sorted(self._descriptors.keys() - descriptors.keys()):
            found.append(f"the descriptor {descriptor} closed")
        for pid in sorted(_children() - self._children):
            found.append(f"the process {pid}")
        if (more := _allocated(self._device) - self._allocated) > 0:
            found.append(f"{more} bytes of a card's memory")
        return found


def _changed(name: str, before: Any, now: Any) -> str:
    """Tells what has changed, and of a mapping or a list only the entries that have."""
    if isinstance(before, Mapping):
        names = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        return f"{name}: {', '.join(map(str, names))}"
    if isinstance(before, tuple):
        entries = [str(entry) for entry in (*now, *before) if entry not in before or entry not in now]
        return f"{name}: {', '.join(entries)}"
    return f"{name}: {now!r} instead of {before!r}"


def _state() -> dict[str, Any]:
    """Returns what a test may change, but has to put back."""
    import torch

    return {
        "environment variables": {key: os.environ[key] for key in os.environ if key not in _OWN_VARIABLES},
        "the working directory": _working_directory(),
        # pkg_resources, which the import of Inductor brings, adds a folder of its own.
        "sys.path": tuple(path for path in sys.path if not path.endswith("setuptools/_vendor")),
        "signal handlers": {number.name: signal.getsignal(number) for number in _SIGNALS},
        "sys.stdout": _identity(sys.stdout),
        "sys.stderr": _identity(sys.stderr),
        "a timer (SIGALRM)": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "the default device": str(torch.get_default_device()),
        "the default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "whether gradients are enabled": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly detection": torch.is_anomaly_enabled(),
        "the default group": torch.distributed.is_initialized(),
    }


_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD]


def _identity(stream: Any) -> str:
    closed = "closed " if getattr(stream, "closed", False) else ""
    return f"{closed}{stream!r} at {id(stream):#x}"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:  # it was removed
        return str(error)


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            is_kept = target.startswith(_KEPT_DESCRIPTORS) or int(name) == _tracker("_fd")
            if int(name) <= 2 or not is_kept:  # the standard streams are files of memory too
                found[int(name)] = target
    return found


def _native_threads() -> dict[int, str]:
    """Returns the threads that Python does not know, by their ids, without those that are kept for good.

    Threads without a name of their own are left out, because libraries keep such for good. The profiler does.
    """
    known = {thread.native_id for thread in threading.enumerate()}
    with open("/proc/self/comm") as file:
        nameless = file.read().strip()
    found = {}
    for entry in os.listdir("/proc/self/task"):
        if int(entry) in known:
            continue
        with contextlib.suppress(OSError), open(f"/proc/self/task/{entry}/comm") as file:
            name = file.read().strip()
            if name != nameless and not name.startswith(_KEPT_THREADS):
                found[int(entry)] = name
    return found


def _threads_of_inductor() -> set[threading.Thread]:
    """Returns the threads that compile. Inductor keeps them for good."""
    module: Any = sys.modules.get("torch._inductor.async_compile")
    pool = module and module.AsyncCompile.pool
    return set(pool()._threads) if pool and pool.cache_info().currsize else set()


def _children() -> set[int]:
    """Returns the processes that this one has started, without multiprocessing's tracker."""
    return forks.children() - {_tracker("_pid")}


def _tracker(attribute: str) -> int | None:
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(module._resource_tracker, attribute, None) if module else None


def _random_state() -> tuple[Any, ...]:
    import torch

    numpy = sys.modules.get("numpy.random")
    return random.getstate(), torch.get_rng_state(), numpy.get_state() if numpy else None


def _set_random_state(state: tuple[Any, ...]) -> None:
    import torch

    random.setstate(state[0])
    torch.set_rng_state(state[1])
    if state[2] is not None:
        sys.modules["numpy.random"].set_state(state[2])


def _leave_groups() -> Iterator[str]:
    """Destroys every group. Its making counts groups, and ranks have to count alike."""
    import torch.distributed as dist

    if dist.is_initialized():
        try:
            dist.destroy_process_group()
        except Exception as error:
            yield f"a group that cannot be destroyed ({error})"
    # torch counts a group whose making has failed, and names later ones by the number.
    dist.distributed_c10d._world.group_count = 0


def _cards() -> Any:
    import torch

    return torch.get_device_module()


def _finish_streams(device: str) -> Iterator[str]:
    """Waits for what is queued, and takes the failures of streams that nobody has read."""
    import torch

    if device == "cpu" or not _cards().is_initialized():
        return
    from vccl import _C

    _C.clear_errors()
    # Bounded, as the failure of a group that somebody still holds is raised every time.
    for _ in range(100):
        try:
            return torch.accelerator.synchronize()
        except RuntimeError as error:
            failure = error
    yield f"a stream that fails: {str(failure).splitlines()[0]}"


def _allocated(device: str) -> int:
    if device == "cpu" or not _cards().is_initialized():
        return 0
    return _cards().memory_allocated()


def _shrink_cache(device: str) -> None:
    if device == "cpu" or not _cards().is_initialized():
        return
    if _cards().memory_reserved() > _CACHED:
        _cards().empty_cache()
    _cards().reset_peak_memory_stats()
