"""Makes a forked process equal to a new process that Python starts with a script, and runs the script."""

import atexit
import builtins
import contextlib
import ctypes
import dataclasses
import gc
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import threading
import traceback
import types
import weakref
from typing import Any, NoReturn

import torch

from vccl import sanitizer
from vccl.sanitizer import endings

from . import blas_threads

# vrun's own main module. With its last reference its globals would be cleared, and functions of it still run.
_kept: list[types.ModuleType] = []
# torch has drawn it at random, and a preloaded module may have set another one.
_seed_at_import = torch.default_generator.initial_seed()
_modules_of_template: set[str] = set()
_files_of_template: list[io.IOBase] = []


@dataclasses.dataclass(frozen=True)
class Job:
    """The program that a rank runs. ``module`` and ``script`` exclude each other."""

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    environment: dict[str, str]
    # Files that take the descriptors 1 and 2, or None for vrun's own.
    stdout: str | None
    stderr: str | None

    @classmethod
    def of(
        cls, command: tuple[str, ...], environment: dict[str, str], stdout: str | None, stderr: str | None
    ) -> "Job | None":
        """Returns the job for a command line, or None if it is none of Python that a fork could run."""
        if command[:2] != (sys.executable, "-u") or len(command) < 3:
            return None
        if command[2] == "-m":
            return cls(None, command[3], command[4:], environment, stdout, stderr)
        # Python also takes folders, archives and compiled files, which are left to it.
        if not command[2].endswith(".py") or not os.path.isfile(command[2]):
            return None
        return cls(command[2], None, command[3:], environment, stdout, stderr)

    @property
    def argv(self) -> list[str]:
        return [self.script or "-m", *self.arguments]


def folder_of(script: str | None) -> str:
    """Returns where Python looks for modules first: beside the script, or in the current folder."""
    return os.path.dirname(os.path.realpath(script)) if script else os.getcwd()


def run(job: Job) -> NoReturn:
    """Runs the job in this process, which has just been forked, and ends the process as Python would."""
    _take_descriptors(job)
    _take_environment(job)
    sys.argv = job.argv
    named = ["-m", job.module] if job.module else [job.script]
    sys.orig_argv = [sys.executable, "-u", *map(str, named), *job.arguments]
    # vrun's own is there now.
    if not getattr(sys.flags, "safe_path", False):  # Python 3.10 has no such flag
        sys.path[0] = folder_of(job.script)
    _end(_status_of(job))


def _status_of(job: Job) -> int:
    """Runs the script. Returns the exit status, and has printed what Python prints of an exception."""
    try:
        if job.module:
            _new_main()
            # Python runs -m by this function.
            runpy._run_module_as_main(job.module, alter_argv=True)  # type: ignore[attr-defined]
        else:
            _run_script(str(job.script))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        if sys.excepthook not in _usual_hooks():
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            print(f"rank {os.environ.get('RANK')}: KeyboardInterrupt in {_place(error)}", file=sys.stderr)
        return -signal.SIGINT
    except BaseException as error:
        # The frames of vrun say nothing about the script.
        error.__traceback__ = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _usual_hooks() -> list[Any]:
    """Returns Python's own hook for exceptions, and the one by which torch puts the rank before each line."""
    hook = sys.excepthook
    of_torch = getattr(hook, "__module__", None) == "torch.distributed.distributed_c10d"
    return [sys.__excepthook__, hook] if of_torch else [sys.__excepthook__]


def _place(error: BaseException) -> str:
    """Returns where an exception was raised. A traceback of each rank would say the same many times."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else "no frame"


def _end(status: int) -> NoReturn:
    """Ends the process as Python does, but leaves what the template has imported as it is.

    Args:
        status: the exit status, or -n if signal n is to end the process.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if threading.active_count() > 1 and status >= 0:
        sys.exit(status)  # Python stops daemon threads before it takes anything from under them
    status = _flushed(status)
    # The script's own streams may need its modules.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    _write_open_files()
    _drop_modules_of_script()
    _write_open_files()
    leave(status)


def leave(status: int) -> NoReturn:
    """Ends the process once everything is done that a program may rely on.

    Python would take apart every module of torch. That takes 0.2 seconds, and more in a fork, whose memory it
    unshares. multiprocessing ends its forks without it, too.
    """
    status = _flushed(status)
    status = endings.status_at_end(status)
    ctypes.CDLL(None).fflush(None)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def remember_template() -> None:
    """Notes what there is before the script runs. Call this before ``gc.freeze``, which hides objects."""
    _modules_of_template.update(sys.modules)
    _files_of_template.extend(_open_files())
    keep_operators_at_exit()


def keep_operators_at_exit() -> None:
    """Lets the process end without taking torch's operators out of the dispatcher one by one.

    Each ``torch.library.Library`` has a finalizer that does so at exit. All of them take 20 ms of a process,
    and unshare 25 MB of a fork.
    """
    finalizers: Any = weakref.finalize
    for finalizer in list(finalizers._registry):
        called = finalizer.peek()
        if called and getattr(called[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def _open_files() -> list[io.IOBase]:
    # The type is asked and not the object: a proxy could answer with another object's class.
    return [file for file in gc.get_objects() if issubclass(type(file), io.IOBase)]


def _write_open_files() -> None:
    """Writes out what is buffered in files that are still open.

    Python's finalizers do so as well, but the collector may close a file before the buffer in front of it.
    """
    for file in (*_files_of_template, *_open_files()):
        with contextlib.suppress(Exception):
            if not file.closed:
                file.flush()


def _drop_modules_of_script() -> None:
    """Lets the objects of ``__main__`` and of what it has imported go, in the order of Python."""
    names = ["__main__", *(name for name in sys.modules if name not in _modules_of_template)]
    modules = [sys.modules.pop(name, None) for name in names]
    left = [weakref.ref(module) for module in modules if isinstance(module, types.ModuleType)]
    modules.clear()
    gc.collect()
    for reference in reversed(left):
        if module := reference():
            values = vars(module)
            values.update(dict.fromkeys(set(values) - {"__builtins__"}))
    gc.collect()


def _flushed(status: int) -> int:
    """Writes out what is printed. Returns the status, or 120 as Python does if the output cannot take it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:
            status = status or 120
    return status


def _take_descriptors(job: Job) -> None:
    for descriptor, path in ((1, job.stdout), (2, job.stderr)):
        if path is not None:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, descriptor)
            os.close(file)
    # As Python's option -u does, with which torchrun starts ranks.
    for name, old in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if old is None:
            continue  # vrun was started without it
        raw = io.FileIO(old.fileno(), "w", closefd=False)
        raw.name = old.name
        new = io.TextIOWrapper(
            raw,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=old.line_buffering,
            write_through=True,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _take_environment(job: Job) -> None:
    """Sets the variables, and what libraries have read from them when they were loaded."""
    replace_environment(job.environment)
    text = job.environment.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(text) if text.isdigit() and int(text) > 0 else None
    if threads:
        # MKL gives a new process no more threads than there are cores, as it has given the template.
        torch.set_num_threads(min(threads, torch.get_num_threads()))
    blas_threads.use(threads)
    # Python's own generator is seeded anew after a fork. These are not, and all ranks would draw the same.
    if torch.default_generator.initial_seed() == _seed_at_import:
        torch.default_generator.seed()
    if random := sys.modules.get("numpy.random"):
        random.seed()
    sanitizer.follow_environment()


def replace_environment(environment: dict[str, str]) -> None:
    """Sets these variables, and removes all others."""
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _new_main() -> types.ModuleType:
    """Puts an empty module ``__main__`` in the place of vrun's own."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    return module


def _run_script(path: str) -> None:
    """Runs a file as the module ``__main__``, which knows its absolute path."""
    path = os.path.join(os.getcwd(), path)
    module = _new_main()
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __cached__=None)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)


def _without_own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the part of a traceback that begins with the script."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    return traceback
