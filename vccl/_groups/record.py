"""Records what the groups of a process do, in a file that ``python -m vccl.replay`` reads."""

import datetime
import os
from types import TracebackType

# How long the end of a record waits for operations that are under way.
_PATIENCE = datetime.timedelta(seconds=10)


class record:
    """Records the operations of this process's groups within a ``with`` block, or from start() to stop().

    Each rank writes ``rank-R.jsonl`` into the directory: which calls it has made in which groups, with sizes,
    dtypes and times. No elements are written. ``VCCL_RECORD`` does the same for a whole job, and
    docs/inside/record.md says what is in the files.

    The end waits up to ten seconds for operations that are under way. Where a file cannot be written any
    more, a line on stderr says so, and the program goes on.

    Args:
        directory: is made if it is not there. It must have no record yet, of this or another job.
        hashes: also records hashes of the elements that each call reads and writes, which takes about as long
            as reading them.

    Raises:
        RuntimeError: the directory cannot be written to, this process records already, or
            VCCL_RECORDER_SIZE=0 switches the flight recorder off. start() and ``with`` raise it.
    """

    def __init__(self, directory: "str | os.PathLike[str]", *, hashes: bool = False) -> None:
        self._directory = os.fspath(directory)
        self._hashes = hashes
        self._running = False

    def start(self) -> None:
        """Begins to record."""
        from vccl import _C

        _C._begin_record(self._directory, self._hashes)
        self._running = True

    def stop(self) -> None:
        """Ends the record. Further calls do nothing."""
        from vccl import _C

        if self._running:
            self._running = False
            _C._end_record(_PATIENCE)

    def __enter__(self) -> "record":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
