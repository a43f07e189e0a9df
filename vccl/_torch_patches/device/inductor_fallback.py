"""Runs a graph on a card eagerly if Inductor cannot compile it, and warns.

A graph that Inductor does not know how to compile must not stop the program. Two errors are raised all the
same: a missing C++ compiler, because warnings would hide that nothing is compiled, and what only a GPU could
run.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vccl._cards.no_gpu import NoGpuError
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from torch.fx import GraphModule

PATCH = Patch(
    __name__,
    without="`torch.compile` raises what Inductor raises where it cannot compile a graph on a card, as with "
    '`options={"cpp_wrapper": True}`',
    until="Inductor offers to run such graphs eagerly",
    after_import_of="torch._inductor.compile_fx",
)


@PATCH.replaces(
    # compile_fx() holds compile_fx_inner() as a default argument, and that function finds this one by name.
    "torch._inductor.compile_fx:_compile_fx_inner",
    "(gm, example_inputs, compile_region_name=..., **graph_kwargs)",
)
def _compile(
    original: Callable[..., Any], gm: "GraphModule", example_inputs: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    if not _is_on_card(gm):
        return original(gm, example_inputs, *args, **kwargs)
    # Inductor rewrites the graph before it may find that it cannot go on.
    saved = torch.fx.GraphModule(gm, copy.copy(gm.graph))
    try:
        return original(gm, example_inputs, *args, **kwargs)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        _raise_what_matters(error, cause)
        _warn(f"{type(cause).__name__}: {cause}".partition("\n")[0])
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(saved.forward)


def _is_on_card(gm: "GraphModule") -> bool:
    values = torch.utils._pytree.tree_leaves([node.meta.get("val") for node in gm.graph.nodes])
    return any(isinstance(value, torch.Tensor) and value.device.type == device_type() for value in values)


def _raise_what_matters(error: Exception, cause: Exception) -> None:
    """Raises an error that running the graph eagerly would hide or repeat."""
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
    from torch._inductor.exc import InvalidCxxCompiler
    from torch._inductor.virtualized import V

    if V.aot_compilation:  # the caller wants a file
        raise error
    if isinstance(cause, InvalidCxxCompiler):
        raise RuntimeError(
            f"torch.compile: Inductor writes C++ for {device_type()}, and found no C++ compiler to compile "
            f"it with ({cause}). Install g++, or name a compiler in the variable CXX, or choose "
            'backend="aot_eager", which needs none.'
        ) from cause
    if isinstance(cause, (NoGpuError, torch.OutOfMemoryError)):
        raise cause
    # With the others, Dynamo talks to itself: it skips a frame, or traces it once more.
    if isinstance(error, TorchDynamoException) and not isinstance(error, BackendCompilerFailed):
        raise error


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"torch.compile: Inductor cannot compile a graph on {device_type()}, which therefore runs operator "
        f"by operator ({reason}).",
        stacklevel=2,
    )
