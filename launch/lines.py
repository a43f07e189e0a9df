"""Puts what several ranks print together, line by line. On a terminal each line has its rank in front."""

import re
from collections.abc import Callable

# A line that is longer is divided if it has a prefix. Otherwise it is begun, and goes on with what follows.
_LONGEST = 1 << 16
# What moves the cursor or clears. Ranks that share a screen would write over each other. Colours stay.
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[@-ln-~]")
_ERASE_LINE = b"\r\x1b[K"
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


def prefix_of(rank: int, coloured: bool, host: int | None = None) -> bytes:
    """Returns the prefix of the lines of a rank, with its host where there are several hosts."""
    text = (b"[rank %d]" % rank) if host is None else b"[host%d rank %d]" % (host, rank)
    return (b"\x1b[%dm%s\x1b[0m " % (_COLOURS[rank % len(_COLOURS)], text)) if coloured else text + b" "


class Lines:
    """The output to one destination. Lines of different sources are never mixed.

    A line that is not complete yet, such as a progress bar or a prompt, is shown when ``show_unfinished`` is
    called, which is for terminals. It is the last line of the screen, which gives way to whatever comes. A
    terminal that cannot erase (TERM=dumb) begins a line, which ends when another source has something to
    print.
    """

    def __init__(self, write: Callable[[bytes], None], erases: bool) -> None:
        """Prepares lines.

        Args:
            write: takes whole lines in one call.
            erases: whether the destination is a terminal on which a line can be erased.
        """
        self._write = write
        self._erases = erases
        self._prefixes: dict[object, bytes] = {}
        self._own_prefixes: dict[object, bytes] = {}
        self._unfinished: dict[object, bytes] = {}  # whoever has printed last comes last
        # The source behind whose unfinished line the cursor stands, and what a terminal shows of it.
        self._shown: object = None
        self._shown_text = b""

    def add(self, source: object, prefix: bytes, own_prefix: bytes = b"") -> None:
        """Adds a source, which may put ``own_prefix`` before lines. It is left out behind ``prefix``."""
        self._prefixes[source] = prefix
        self._own_prefixes[source] = own_prefix if prefix else b""
        self._unfinished[source] = b""

    @property
    def has_hidden(self) -> bool:
        """Whether there is something unfinished that ``show_unfinished`` would show."""
        source = self._latest_unfinished()
        return source is not None and (source, self._unfinished[source]) != (self._shown, self._shown_text)

    def feed(self, source: object, data: bytes) -> None:
        """Takes what a source has printed, and writes the lines that are complete."""
        *complete, rest = (self._unfinished.pop(source) + data).split(b"\n")
        if self._erases:
            rest = _overwritten(rest)
        if len(rest) > _LONGEST and self._prefixes[source]:
            complete.append(rest)
            rest = b""
        self._unfinished[source] = rest
        if complete:
            self._write_lines(source, complete)
        if len(rest) > _LONGEST:
            self._begin_line(source)

    def finish(self, source: object) -> None:
        """Writes the line that a source has left unfinished. The source prints no more."""
        if self._prefixes[source]:
            rest = self._unfinished.pop(source)
            if rest or self._shown == source:
                self._write_lines(source, [rest])
        else:
            # What has no prefix is what the source has printed, to the byte, unless another line follows.
            if self._unfinished[source]:
                self._begin_line(source)
            del self._unfinished[source]
        del self._prefixes[source], self._own_prefixes[source]

    def say(self, line: bytes) -> None:
        """Writes a line of vrun's own."""
        self._write(self._break(None) + line + b"\n")

    def show_unfinished(self) -> None:
        """Shows the unfinished line of the source that has printed last of those that have one."""
        source = self._latest_unfinished()
        if source is None:
            return
        text = self._unfinished[source]
        if self._erases:
            visible = _MOVES.sub(b"", text.rstrip(b"\r")).decode(errors="ignore").encode()
            self._write(self._break(None) + _NO_WRAP + self._prefixes[source] + visible + _WRAP)
            self._shown_text = text
            self._shown = source
        else:
            self._begin_line(source)

    def _begin_line(self, source: object) -> None:
        """Writes what is there of a line, which goes on unless another source has something to print."""
        prefix = b"" if self._shown == source else self._prefixes[source]
        self._write(self._break(source) + prefix + self._unfinished[source])
        self._unfinished[source] = b""
        self._shown = source

    def _latest_unfinished(self) -> object:
        return next((source for source, text in reversed(self._unfinished.items()) if text), None)

    def _write_lines(self, source: object, lines: list[bytes]) -> None:
        prefix = self._prefixes[source]
        lines = [line.removeprefix(self._own_prefixes[source]) for line in lines]
        if self._erases:
            lines = [_MOVES.sub(b"", _overwritten(line.rstrip(b"\r"))) for line in lines]
        continued = not self._erases and self._shown == source
        text = b"".join(prefix + line + b"\n" for line in lines)
        self._write(self._break(source) + text[len(prefix) if continued else 0 :])
        self._shown = None

    def _break(self, source: object) -> bytes:
        """Returns what has to be written before a source's line can begin, or go on where it has begun."""
        shown = self._shown
        if shown is None or (shown == source and not self._erases):
            return b""
        self._shown = None
        return _ERASE_LINE if self._erases else b"\n"


def _overwritten(line: bytes) -> bytes:
    """Returns what a terminal shows of a line whose carriage returns let it begin anew."""
    end = b"\r" if line.endswith(b"\r") else b""
    return line.rstrip(b"\r").rpartition(b"\r")[2] + end
