"""Runs eagerly what ``torch.compile`` hands to Inductor and what concerns a card, and warns once.

Inductor generates no code for vdev and raises ``KeyError: 'vdev'``. The backends "eager" and "aot_eager", and
graphs without a card, are as torch has them.
"""

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from torch.fx import GraphModule

PATCH = Patch(
    __name__,
    without="`torch.compile` of anything on a card raises `KeyError: 'vdev'` in Inductor",
    until="vccl generates code for vdev through Inductor",
)


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "torch.compile: Inductor cannot compile for vdev yet, so functions and models on vdev run "
        'eagerly. Choose backend="aot_eager" to trace them without code generation.',
        stacklevel=2,
    )


@PATCH.replaces(
    "torch:_TorchCompileInductorWrapper.__call__", "(self, model_, inputs_, *, config_patches=...)"
)
def _compile(
    original: Callable[..., Any], self: Any, model_: "GraphModule", inputs_: Any, **options: Any
) -> Callable[..., Any]:
    values = [inputs_, [node.meta.get("example_value") for node in model_.graph.nodes]]
    if not any(
        isinstance(value, torch.Tensor) and value.device.type == "vdev"
        for value in torch.utils._pytree.tree_leaves(values)
    ):
        return original(self, model_, inputs_, **options)
    _warn_once()
    return model_.forward
