"""Decides which nodes of a graph share a kernel."""

from __future__ import annotations

import functools
from typing import Any

from torch._inductor.codegen.cpp import CppScheduling


class CardScheduling(CppScheduling):
    """Generates C++ as for the CPU.

    That generator keeps what it has generated back, to put more into the same kernel, until a node comes that
    calls an operator on a device. It does not see that it must not cross what has no device: the recording of
    events and the waiting for them, which CPU graphs do not have.
    """

    @functools.cached_property
    def _must_keep_order(self) -> bool:
        assert self.scheduler is not None
        return any(node.is_extern() and node.get_device() is None for node in self.scheduler.nodes)

    def codegen_node(self, node: Any) -> None:
        super().codegen_node(node)
        if self._must_keep_order:
            self.flush()
