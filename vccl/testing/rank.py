"""The process of a rank: it runs the calls that pytest's process sends, one after the other."""

import contextlib
import ctypes
import dataclasses
import datetime
import faulthandler
import importlib
import io
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from . import cleanliness, coverage, messages, world
from .collection import Collection
from .messages import Description, Done, Failing, Leaving, Order, RunFunction, RunTest
from .rank_plugin import refuse_breakpoint

# Seconds in which a rank reaches the store, which is on this machine.
_STORE_SECONDS = 60.0
_LINE_BUFFERED = 1  # _IOLBF of stdio.h
# Files whose frames say nothing about a test: those of pytest and of this package.
_OWN_FILES = re.compile(rf"/(_pytest|pluggy)/|^{re.escape(os.path.dirname(__file__))}/|<frozen runpy>")
_process: "RankProcess | None" = None


class RankProcess:
    """The rank's end of its pipe. A thread reads it, because orders come while a test runs."""

    def __init__(self, pipe: Connection, collection: Collection) -> None:
        self._pipe = pipe
        self._collection = collection
        self._sending = threading.Lock()
        self._calls: queue.SimpleQueue[RunTest | RunFunction | None] = queue.SimpleQueue()
        self._store: Any = None
        self._failed = False
        # The search for deadlocks knows this thread by the name of its function: vccl/_threads.py.
        threading.Thread(target=self._obey, name="vccl rank", daemon=True).start()

    def serve(self) -> None:
        """Runs calls, until the pipe is closed."""
        while (call := self._calls.get()) is not None:
            done = self._run(call)
            try:
                self._send(done)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.tell_failure(time.monotonic())
                text = f"TypeError: what the test returns or records cannot be sent: {error}"
                self._send(dataclasses.replace(done, result=None, error=text))
            coverage.write()

    def announce_end(self) -> None:
        self._send(Leaving())

    def _send(self, message: object) -> None:
        with self._sending:
            messages.send(self._pipe, message)

    def _obey(self) -> None:
        while True:
            try:
                message = messages.receive(self._pipe)
            except (EOFError, OSError):
                self._calls.put(None)
                return
            if message is Order.ABORT:
                _abort_groups()
            elif message is Order.DESCRIBE:
                with contextlib.suppress(OSError):
                    self._send(Description(_stacks()))
            else:
                self._calls.put(message)

    def _run(self, call: RunTest | RunFunction) -> Done:
        store = self._connected(call)
        before = cleanliness.Snapshot(call.place.device)
        self._failed = False
        result, error, unfinished = None, "", []
        try:
            with world.entered(call.place, store) as own:
                result = self._run_test(call, own) if isinstance(call, RunTest) else _call(call, own)
        except BaseException as failure:
            self.tell_failure(time.monotonic())
            error = _text_of(failure)
            # pytest.exit() and Ctrl-C leave fixtures behind that no other test must find.
            unfinished = ["an unfinished test"] if isinstance(call, RunTest) else []
        plugin = self._collection.plugin
        warned = tuple(plugin.warnings)
        plugin.begin_test(None, lambda at: None)
        try:
            left = before.restore()
        except Exception as failure:
            left = [f"a state that cannot be put back ({failure!r})"]
        _flush()
        return Done(result, error, warned, (*left, *unfinished))

    def _connected(self, call: RunTest | RunFunction) -> Any:
        import torch.distributed as dist

        if self._store is None:
            host, port = call.place.address
            self._store = dist.TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=_STORE_SECONDS),
            )
        self._store.set_timeout(datetime.timedelta(seconds=call.place.group_timeout))
        return self._store

    def _run_test(self, call: RunTest, own: world.World) -> list[dict[str, Any]]:
        plugin, config = self._collection.plugin, self._collection.config
        plugin.begin_test(call.folder, self.tell_failure)
        item = self._collection.item(call.file, call.node_id)
        self._collection.session.shouldfail = self._collection.session.shouldstop = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return [
            config.hook.pytest_report_to_serializable(config=config, report=report)
            for report in plugin.reports
        ]

    def tell_failure(self, at: float) -> None:
        if not self._failed:
            self._failed = True
            self._send(Failing(at))


def become(pipe: Connection, collection: Collection) -> NoReturn:
    """Serves as a rank until pytest's process closes the pipe, and ends the process."""
    global _process
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _write_at_once()
    if not sys.stdin.isatty():
        sys.breakpointhook = refuse_breakpoint
    collection.plugin.become_rank(collection.session)
    coverage.start()
    _draw_own_numbers()
    _process = RankProcess(pipe, collection)
    status = 0
    try:
        _process.serve()
    except BaseException:
        traceback.print_exc()
        status = 1
    _flush()
    os._exit(status)


def announce_end() -> None:
    """Tells pytest's process that this rank is about to end itself, as the test wants."""
    assert _process is not None
    _process.announce_end()


def announce_failure() -> None:
    """Tells pytest's process that the test has failed on this rank, and that others need not wait for it."""
    assert _process is not None
    _process.tell_failure(time.monotonic())


def _call(call: RunFunction, own: world.World) -> Any:
    function: Any = importlib.import_module(call.module)
    for name in call.name.split("."):
        function = getattr(function, name)
    own.make_group()
    return function(own.rank, own.size, *(() if call.place.backend else (own.store,)), *call.arguments)


def _text_of(failure: BaseException) -> str:
    """Returns the traceback of what was called, without the frames of this file."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, world.__file__):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(failure), failure, trace or failure.__traceback__))


def _abort_groups() -> None:
    """Makes what ranks wait for in collectives raise. Not every backend can."""
    import torch.distributed as dist

    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(Exception):
            group.abort()


def _waits() -> list[str]:
    compiled: Any = sys.modules.get("vccl._C")
    return compiled._waits() if compiled else []


def _stacks() -> str:
    """Returns where each thread of Python is, and what the process waits for in collectives of vccl."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = [f"waits in {wait}" for wait in _waits()]
    for ident, frame in sys._current_frames().items():
        if ident != own:
            stack = [
                entry for entry in traceback.extract_stack(frame) if not _OWN_FILES.search(entry.filename)
            ]
            parts.append(f"thread {names.get(ident, ident)!r}:\n" + "".join(traceback.format_list(stack)))
    return "\n".join(parts)


def _write_at_once() -> None:
    """Keeps nothing that was printed in buffers, where it would be lost if the rank is killed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=True)
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)


def _draw_own_numbers() -> None:
    """Seeds generators at random, as in a new process. After a fork, all ranks would draw the same."""
    import torch

    torch.default_generator.seed()
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
