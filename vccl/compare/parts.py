"""The plain tensors in which tensors of other kinds keep their elements."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns dense tensors with those elements of a tensor that this rank has.

    They share memory with the tensor if its own elements are dense. A sparse or quantized tensor is made
    dense. A nested one has a part for each of its tensors, or its values and offsets if it is jagged. There
    are no parts of a tensor without elements (meta), nor of a class that tells nobody what it consists of.
    """
    if type(tensor) not in _PLAIN:
        return [part for inner in _inner_tensors(tensor) for part in parts_of(inner)]
    tensor = tensor.detach()
    if tensor.is_meta:
        return []
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout != torch.strided:
        return [tensor.to_dense()]
    return [tensor.dequantize()] if tensor.is_quantized else [tensor]


def _inner_tensors(tensor: Any) -> list[torch.Tensor]:
    if hasattr(tensor, "trigger_wait"):  # AsyncCollectiveTensor, whose elements may still be on their way
        return [tensor.trigger_wait()]
    if tensor.layout == torch.jagged:  # its other inner tensors are caches, which only some operators fill
        inner = [tensor.values(), tensor.offsets(), tensor.lengths()]
        return [part for part in inner if part is not None]
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for part in inner if isinstance(part, torch.Tensor)]  # a DTensor also has a mesh there
    if type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return [tensor.as_subclass(torch.Tensor)]
    return []


def addresses_of(tensor: Any) -> set[int]:
    """Returns where the memory of a tensor begins, or that of this rank's part. Waits for nothing."""
    for name in ("_local_tensor", "elem", "_values"):  # DTensor, AsyncCollectiveTensor, jagged
        inner = getattr(tensor, name, None)
        if isinstance(inner, torch.Tensor):
            return addresses_of(inner)
    try:
        return {tensor.untyped_storage().data_ptr()} - {0}
    except (NotImplementedError, RuntimeError):
        return set()  # it has none of its own, for example because it is sparse
