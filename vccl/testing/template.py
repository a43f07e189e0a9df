"""The process that imports torch and the tests once, and from which ranks are forked.

pytest's process starts it with ``python -m vccl.testing.template <its pid> <descriptor>`` when the first test
asks for ranks. Where the tests' own imports start threads or use cards, it cannot be forked. Then every rank
is such a process by itself, and serves as the rank after its first collection.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import NoReturn

from vccl.launch import forks
from vccl.launch.forks import Ended, Started

from . import coverage
from .collection import Collection, CollectionError
from .messages import Begin, Fork, Refused


class Template:
    """Forks ranks and reports their ends, until pytest's process closes the pipe."""

    def __init__(self, pipe: Connection, collection: Collection) -> None:
        self._pipe = pipe
        self._collection = collection
        self._running: dict[int, int] = {}  # the pidfd of a running rank -> its pid

    def serve(self) -> None:
        while True:
            for ready in wait([self._pipe, *self._running]):
                try:
                    if isinstance(ready, int):
                        self._report_end(ready)
                    else:
                        self._start(self._pipe.recv())
                except (EOFError, OSError):  # pytest's process has ended, or is done
                    forks.end_all(list(self._running.values()))
                    return

    def _report_end(self, descriptor: int) -> None:
        pid = self._running.pop(descriptor)
        status = forks.status_of(descriptor)
        os.waitpid(pid, 0)
        self._end_orphans()
        self._pipe.send(Ended(pid, status))

    def _end_orphans(self) -> None:
        """Ends what a rank has started and left. The kernel has made this process the parent."""
        for pid in forks.children():
            if pid in self._running.values():
                continue
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.getsid(pid) not in self._running.values():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def _start(self, request: Fork) -> None:
        handles = [recv_handle(self._pipe) for _ in range(3)]
        try:
            if refused := self._collected(request):
                self._pipe.send(refused)
                return
            try:
                descriptor, pid = forks.fork(_mask())
            except OSError as error:
                self._pipe.send(Refused(f"a fork failed: {error}", fatal=True))
                return
            if pid == 0:
                self._pipe.close()
                for other in self._running:
                    os.close(other)
                serve_as_rank(self._collection, request, handles)
            self._running[descriptor] = pid
            self._pipe.send(Started(pid))
        finally:
            for handle in handles:
                os.close(handle)

    def _collected(self, request: Fork) -> Refused | None:
        """Imports the file of tests. Returns why no rank can be forked then, or None."""
        new = request.file not in self._collection.files
        try:
            self._collection.collect(request.file)
        except CollectionError as error:
            return Refused(str(error), fatal=True)
        if new:
            # The collector would write to the pages of all these objects in every rank, which unshares them.
            gc.collect()
            gc.freeze()
        if threads := forks.threads_besides_this_one():
            what = f"{threads} thread{'s' * (threads > 1)}"
            return Refused(f"the import of {request.file} has started {what}, which a fork would lose")
        import torch

        if torch.accelerator.is_available() and torch.get_device_module().is_initialized():
            return Refused(f"the import of {request.file} has used a card, which a fork cannot")
        return None


def serve_as_rank(collection: Collection, request: Fork, handles: list[int]) -> NoReturn:
    """Makes this process a rank, and ends it when pytest's process needs it no more."""
    from . import rank

    os.environ.update(request.environment)
    pipe, stdout, stderr = handles
    if not request.keeps_terminal:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
    rank.become(Connection(os.dup(pipe)), collection)


def _warm_up() -> None:
    """Opens what a process has for good once it has served a store, so that no test is blamed for it."""
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _mask() -> set[int | signal.Signals]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def main() -> None:
    forks.end_with_parent(int(sys.argv[1]))
    pipe = Connection(int(sys.argv[2]))
    os.set_inheritable(pipe.fileno(), False)
    faulthandler.enable()
    begin: Begin = pipe.recv()
    alone = "--alone" in sys.argv
    sys.argv = [sys.argv[0]]
    coverage.remember(begin.coverage)
    try:
        collection = Collection(begin)
        import torch  # noqa: F401  the tests import it anyway
    except BaseException:
        reason = f"the process that should fork ranks has failed:\n{traceback.format_exc()}"
        pipe.send(Refused(reason, fatal=True, for_good=True))
        raise
    _warm_up()
    if not alone:
        forks.adopt_orphans()
        Template(pipe, collection).serve()
        return
    request: Fork = pipe.recv()
    handles = [recv_handle(pipe) for _ in range(3)]
    try:
        collection.collect(request.file)
    except CollectionError as error:
        pipe.send(Refused(str(error), fatal=True))
        return
    pipe.send(Started(os.getpid()))
    serve_as_rank(collection, request, handles)


if __name__ == "__main__":
    main()
