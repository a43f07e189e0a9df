"""What is known of an operator from its schema: what it writes, and whether it makes values at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves

from vccl.compare.collectives import brings_later
from vccl.compare.parts import parts_of

# Their results are memory that nobody has written yet, or no values.
_WITHOUT_VALUES = (
    "aten::empty",
    "aten::new_empty",
    "aten::resize",
    "aten::set_",
    "aten::record_stream",
    "aten::_has_compatible_shallow_copy_type",
    "profiler::",
    "fsdp::record_grad_output_stream",
)
# Results that only the operator's own backward pass reads, by their positions. Of those of the LSTM and of
# bags of embeddings, not all bytes are written. The means of a norm behind another norm would be 0 but for
# rounding.
_WORKSPACES = {
    "aten::_embedding_bag": (1, 2, 3),
    "aten::_embedding_bag_forward_only": (1, 2, 3),
    "aten::mkldnn_rnn_layer": (3,),
    "aten::native_layer_norm": (1,),
    "aten::native_group_norm": (1,),
    "flex_attention": (1, 2),
    "fsdp::all_gather_copy_in": (1,),  # only this rank's part of it is written
}
# An operator with these arguments draws no random numbers if one of them is 0 or false.
_SWITCHES = ("dropout_p", "dropout", "p", "train", "training")


def has_subclass(types: Any) -> bool:
    """Returns whether a call has tensors of a class with operators of its own, such as DTensor."""
    return any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types)


def has_values(function: Any) -> bool:
    """Returns whether the operator computes elements, and they are there when it returns.

    Those of a view are its argument's. Those of a collective are seen when something waits for them.
    """
    if isinstance(function, HigherOrderOperator):
        return True
    return not (function.is_view or function.name().startswith(_WITHOUT_VALUES) or brings_later(function))


def arguments_by_name(function: Any, args: tuple, kwargs: dict) -> Iterator[tuple[Any, Any]]:
    """Yields the arguments of a call, or their defaults, with their entries in the schema."""
    if isinstance(function, HigherOrderOperator):  # these have no schema
        return
    for position, argument in enumerate(function._schema.arguments):
        if position < len(args):
            yield argument, args[position]
        else:
            yield argument, kwargs.get(argument.name, argument.default_value)


def draws_numbers(function: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a call takes numbers from a random generator."""
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    for argument, value in arguments_by_name(function, args, kwargs):
        if argument.name in _SWITCHES and isinstance(value, bool | int | float) and not value:
            return False
    return True


def written_arguments(function: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Returns the arguments that a call writes, in the order of the schema."""
    return [
        leaf
        for argument, value in arguments_by_name(function, args, kwargs)
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def values_of(function: Any, args: tuple, kwargs: dict, output: Any) -> list[torch.Tensor]:
    """Returns what a call has computed: its results, numbers as tensors, and the arguments that it wrote.

    Each is a dense tensor, or several of them for a nested one. What only the operator's own backward pass
    reads is left out where it cannot be compared.
    """
    values: list[torch.Tensor] = []
    workspaces = _WORKSPACES.get(function.name(), ())
    for position, leaf in enumerate(tree_leaves(output)):
        if position in workspaces:
            continue
        if isinstance(leaf, torch.Tensor):
            values.append(leaf)
        elif isinstance(leaf, bool | int | float):
            values.append(torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None))
    seen = {id(value) for value in values}
    values += [t for t in written_arguments(function, args, kwargs) if id(t) not in seen]
    return [part for value in values for part in parts_of(value)]


def shapes_of(args: tuple, kwargs: dict) -> str:
    """Returns the arguments as a short text: dtype and sizes of tensors, and the values of the rest."""
    parts = [_shown(value) for value in args]
    parts += [f"{name}={_shown(value)}" for name, value in kwargs.items()]
    return "(" + ", ".join(parts) + ")"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested and value.layout == torch.strided:
        sizes = value._nested_tensor_size().tolist()
        return f"nested {str(value.dtype).removeprefix('torch.')}{sizes}"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_shown(element) for element in value) + "]"
    return str(value)
