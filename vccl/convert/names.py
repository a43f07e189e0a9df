"""Finds out what a name means: what it was imported as, in the scope where it stands."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import Assignment, ImportAssignment, QualifiedNameSource

from vccl.convert.source import Source


def chain(node: cst.CSTNode) -> tuple[cst.Name, tuple[str, ...]] | None:
    """Returns the first name of `a.b.c` and what follows it, or None if it is not such a chain."""
    attributes: list[str] = []
    while isinstance(node, cst.Attribute):
        attributes.append(node.attr.value)
        node = node.value
    return (node, tuple(reversed(attributes))) if isinstance(node, cst.Name) else None


class Names:
    """Looks names of a script up."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._torch_names = ["torch", *self._aliases_of_torch()]

    def full_name(self, node: cst.CSTNode) -> str | None:
        """Returns what `t.cuda.Stream` was imported as: `torch.cuda.Stream`. None if that is not certain."""
        found = self.meanings(node)
        return found.pop() if len(found) == 1 and None not in found else None

    def meanings(self, node: cst.CSTNode) -> set[str | None]:
        """Returns all full names that a chain may have; None in it stands for a value of the script's own."""
        parts = chain(node)
        if parts is None:
            return set()
        root, attributes = parts
        return {
            name if name is None else ".".join((name, *attributes))
            for name in self._imported(root.value, root)
        }

    def torch_at(self, node: cst.CSTNode) -> str | None:
        """Returns the name under which the script has torch at this place.

        It is "torch", too, where nothing has that name, so that the import can be added. It is None where the
        name means something else.
        """
        for name in self._torch_names:
            if self._imported(name, node) == {"torch"}:
                return name
        return None if self._imported("torch", node) else "torch"

    def has_torch_at(self, node: cst.CSTNode) -> bool:
        name = self.torch_at(node)
        return name is not None and self._imported(name, node) == {"torch"}

    def _imported(self, name: str, node: cst.CSTNode) -> set[str | None]:
        """Returns what a bare name was imported as at a place, and None if it has other values too."""
        scope = self._source.scope(node)
        found: set[str | None] = set()
        for assignment in scope[name] if scope is not None else ():
            if isinstance(assignment, ImportAssignment):
                if not self._for_type_checkers_only(assignment.node):
                    names = assignment.get_qualified_names_for(name)
                    found |= {full.name for full in names if full.source is QualifiedNameSource.IMPORT}
            elif not (isinstance(assignment, Assignment) and self._assigns_none(assignment.node)):
                found.add(None)
        return found

    def _for_type_checkers_only(self, statement: cst.CSTNode) -> bool:
        return any(
            isinstance(above, cst.If) and self._source.code(above.test).endswith("TYPE_CHECKING")
            for above in self._source.ancestors(statement)
        )

    def _assigns_none(self, name: cst.CSTNode) -> bool:
        """Returns whether this is the `torch = None` of a script that can do without the module."""
        target = self._source.parent(name)
        statement = self._source.parent(target) if isinstance(target, cst.AssignTarget) else None
        return isinstance(statement, cst.Assign) and self._source.code(statement.value) == "None"

    def _aliases_of_torch(self) -> list[str]:
        aliases = []
        for node in self._source.walk():
            if isinstance(node, cst.Import):
                for alias in node.names:
                    if self._source.code(alias.name) == "torch" and alias.asname is not None:
                        aliases.append(self._source.code(alias.asname.name))
        return aliases
