"""Reads which finds are not to be reported.

Each line of the file is ``file:PATTERN``, ``function:PATTERN`` or ``op:PATTERN``, with the wildcards of
fnmatch. It suppresses a find if either access matches. A pattern of a file without "/" is compared with the
last part of the path, too. Empty lines and lines that begin with # are skipped.
"""

from __future__ import annotations

import fnmatch
import os.path
from collections.abc import Sequence
from typing import Any

_KEYS = ("file", "function", "op")


class Suppressions:
    """The lines of a file, with how often each has matched."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self.counts = dict.fromkeys(lines, 0)
        self._rules = [(line, *line.split(":", 1)) for line in lines]

    @classmethod
    def read(cls, path: str | None) -> Suppressions:
        """Returns the lines of the file, or none without a path.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line has another form.
        """
        if path is None:
            return cls()
        lines = []
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                line = line.strip()
                if not line or line.startswith("#"):
                    continue
                if line.partition(":")[0] not in _KEYS or not line.partition(":")[2]:
                    raise ValueError(
                        f"{path}:{number}: {line!r} is not valid: expected file:PATTERN, function:PATTERN or "
                        "op:PATTERN"
                    )
                lines.append(line)
        return cls(lines)

    def match(self, raw: dict[str, Any]) -> bool:
        """Returns whether a find is suppressed, and counts it then. ``raw`` is the detector's."""
        for line, key, pattern in self._rules:
            for side in ("first", "second"):
                access = raw[side]
                if access and any(fnmatch.fnmatch(text, pattern) for text in _texts(access, key)):
                    self.counts[line] += 1
                    return True
        return False


def _texts(access: dict[str, Any], key: str) -> tuple[str, ...]:
    """Returns what a pattern may match."""
    if key == "file":
        return access["file"], os.path.basename(access["file"])
    return (access[key],)
