"""Collects what is to change in a script and what is left, and makes the changed text."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from vccl.convert.names import Names, chain
from vccl.convert.source import Source


@dataclass(frozen=True, order=True)
class Leftover:
    """Something that is left as it is, and what to do about it by hand."""

    line: int
    expression: str
    advice: str


class Plan:
    """Changes of a script that do not touch each other, and what was left."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names = Names(source)
        self.leftovers: set[Leftover] = set()
        self.needs_torch = False  # whether a change uses torch where the script has not imported it
        self._edits: list[tuple[int, int, str]] = []
        self._handled: set[cst.CSTNode] = set()  # nodes that were changed, or reported
        self._changed: set[cst.CSTNode] = set()

    # ---- changes

    def replace(self, node: cst.CSTNode, text: str) -> None:
        self.replace_span(*self.source.span(node), text)
        self.handle(node)
        parts = chain(node)
        self._changed.add(node if parts is None else parts[0])

    def replace_span(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))

    def insert(self, place: int, text: str) -> None:
        self._edits.append((place, place, text))

    def changed_text(self) -> str:
        """Returns the text with all changes. Insertions at one place keep their order.

        Raises:
            RuntimeError: two changes touch each other, which is a mistake of this package.
        """
        text, end, parts = self.source.text, 0, []
        for start, stop, new in sorted(self._edits, key=lambda edit: edit[:2]):
            if start < end:
                raise RuntimeError(f"two changes touch each other at {text[start:stop]!r}")
            parts += [text[end:start], new]
            end = stop
        return "".join([*parts, text[end:]])

    # ---- what was seen

    def handle(self, node: cst.CSTNode) -> None:
        """Notes that a node needs nothing more."""
        self._handled.add(node)

    def is_handled(self, node: cst.CSTNode) -> bool:
        return node in self._handled

    def was_changed(self, name: cst.Name) -> bool:
        """Returns whether the chain that begins with this name was replaced."""
        return name in self._changed

    def leave(self, node: cst.CSTNode, advice: str) -> None:
        """Notes that a node is left, for the report."""
        expression = " ".join(self.source.code(node).split())
        if len(expression) > 80:
            expression = expression[:77] + "..."
        self.leftovers.add(Leftover(self.source.line(node), expression, advice))
        self._handled.add(node)

    # ---- names of torch

    def torch(self, node: cst.CSTNode, rest: str) -> str | None:
        """Returns `torch.<rest>` as this place spells it; the import is added if there is none.

        It returns None, and leaves the node, where the name torch means something else, or where TorchScript
        would have to compile it.
        """
        if self._is_scripted(node):
            self.leave(node, "TorchScript does not compile torch.accelerator: pass the device in")
            return None
        name = self.names.torch_at(node)
        if name is None:
            self.leave(node, "the name `torch` means something else here")
            return None
        if not self.names.has_torch_at(node):
            self.needs_torch = True
        return f"{name}.{rest}"

    def _is_scripted(self, node: cst.CSTNode) -> bool:
        """Returns whether a function or class around a node is decorated with torch.jit.script*."""
        return any(
            "jit.script" in self.source.code(decorator)
            for above in self.source.ancestors(node)
            if isinstance(above, (cst.FunctionDef, cst.ClassDef))
            for decorator in above.decorators
        )
