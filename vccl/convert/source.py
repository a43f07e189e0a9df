"""Holds a parsed script: its text, its tree, where each node stands, and what encloses it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider, Scope, ScopeProvider

# LibCST counts a line after each of these, and after nothing else.
_LINE_END = re.compile(r"\r\n?|\n")


class Source:
    """A script whose tree is only read. Spans are offsets into `text`."""

    def __init__(self, text: str, module: cst.Module) -> None:
        self.text = text
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def walk(self) -> Iterator[cst.CSTNode]:
        """Yields all nodes in the order of the text, each before what it holds."""
        waiting: list[cst.CSTNode] = [self.module]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns where a node stands, without the parentheses around it."""
        place = self._positions[node]
        start = self._lines[place.start.line - 1] + place.start.column
        return start, self._lines[place.end.line - 1] + place.end.column

    def line(self, node: cst.CSTNode) -> int:
        return self._positions[node].start.line

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields what encloses a node, from the inside out."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """Returns the scope that a name at this node is looked up in."""
        for place in (node, *self.ancestors(node)):
            scope = self._scopes.get(place)
            if scope is not None:
                return scope
        return None
