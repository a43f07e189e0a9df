"""Decides which nodes of a graph share a kernel, and writes the kernels."""

from __future__ import annotations

import functools
from typing import Any

from torch._inductor.codegen.cpp import CppScheduling, KernelGroup
from torch._inductor.codegen.cpp_flex_attention_template import CppFlexAttentionTemplate

# The end of a kernel of torch 2.13, which writes 0 where it divides an integer by zero, and remembers that.
_RAISE_ZERO_DIVISION = "inductor_cpu_throw_if_integer_div_error(inductor_cpu_integer_div_error);"


class _CardKernelGroup(KernelGroup):
    """Writes a kernel that divides integers by zero without an error, as a GPU does."""

    def codegen_group(self, name: str | None = None) -> str:
        return super().codegen_group(name).replace(_RAISE_ZERO_DIVISION, "")


class CardScheduling(CppScheduling):
    """Generates C++ as for the CPU.

    That generator keeps what it has generated back, to put more into the same kernel, until a node comes that
    calls an operator on a device. It does not see that it must not cross what has no device: the recording of
    events and the waiting for them, which CPU graphs do not have.
    """

    def reset_kernel_group(self) -> None:
        self.kernel_group = _CardKernelGroup()

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        """Torch (2.13) fuses what follows FlexAttention into its template, which then refuses it."""
        if isinstance(getattr(node1.node, "template", None), CppFlexAttentionTemplate):
            return False
        return super().can_fuse_vertical(node1, node2)

    @functools.cached_property
    def _must_keep_order(self) -> bool:
        assert self.scheduler is not None
        return any(node.is_extern() and node.get_device() is None for node in self.scheduler.nodes)

    def codegen_node(self, node: Any) -> None:
        super().codegen_node(node)
        if self._must_keep_order:
            self.flush()
