"""The text that pytest shows for a test that failed on ranks.

The process that reports the results of xdist's workers makes it anew from what a worker sends, in threads. It
must not import torch for that, and two threads must not import the same modules.
"""

from collections.abc import Sequence
from typing import Any

from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter


class RanksRepr(TerminalRepr):
    """The text for a test that failed on ranks: the rank that failed first comes first."""

    def __init__(self, parts: Sequence[Sequence[str]], place: tuple[str, int], message: str) -> None:
        """``parts`` are pairs of a headline and a text."""
        self.parts = [tuple(part) for part in parts]
        self.place, self.message = place, message
        self.reprcrash = ReprFileLocation(place[0], place[1], message)

    def toterminal(self, tw: TerminalWriter) -> None:
        for headline, text in self.parts:
            tw.sep("-", headline, red=True, bold=True)
            for line in text.splitlines():
                tw.line(line, red=line.startswith("E "), bold=line.startswith(("E ", ">")))

    def to_data(self) -> dict[str, Any]:
        """Returns the data that ``from_data`` takes, of types that xdist can send."""
        return {
            "parts": [list(part) for part in self.parts],
            "place": list(self.place),
            "message": self.message,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "RanksRepr":
        path, line = data["place"]
        return cls(data["parts"], (path, line), data["message"])
