"""Lets Dynamo trace calls of Triton's kernels on cards.

Dynamo knows kernels where Inductor could generate Triton (``has_triton()``), which it cannot for cards. It
would trace into Triton itself.
"""

import sys
from collections.abc import Callable
from typing import Any

from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="torch.compile ends the graph at each call of a Triton kernel, and fullgraph=True refuses it",
    until="Dynamo knows kernels wherever Triton is installed",
    after_import_of="torch._dynamo.variables.builder",
)


@PATCH.replaces("torch._dynamo.variables.builder:VariableBuilder._wrap", "(self, value)")
def _wrap(original: Callable[..., Any], self: Any, value: Any) -> Any:
    if type(value).__name__ not in ("JITFunction", "Autotuner") or not _is_kernel(value):
        return original(self, value)
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables.functions import TritonKernelVariable

    self.install_guards(GuardBuilder.ID_MATCH)
    return TritonKernelVariable(value, None, None, source=self.source)


def _is_kernel(value: Any) -> bool:
    triton = sys.modules.get("triton.runtime")
    return triton is not None and isinstance(value, (triton.JITFunction, triton.Autotuner))
