"""What is common to all that watches operators."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from vccl._device_type import device_type
from vccl.compare.operators import has_subclass, has_values, tensors_in
from vccl.compare.unwritten import Unwritten

_DENSE_KEY = torch._C.DispatchKey.CompositeExplicitAutograd


# Modes of torch's own, which come after this one. DTensor asks fake tensors for the sizes of a result, and
# operators that take functions trace them for their gradients. There are no elements to look at.
_KEYS = torch._C._TorchDispatchModeKey
_OF_TORCH = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


class Observer(TorchDispatchMode):
    """Sees every operator on plain tensors.

    Tensors and operators of other kinds are seen by what they make of their calls. Derived classes have
    ``observed()``, which calls the operator and returns its result.
    """

    supports_higher_order_operators = True
    looks_into_attention = True  # else flex_attention is one operator

    def __init__(self) -> None:
        super().__init__()
        self._unwritten = Unwritten()

    def observed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        raise NotImplementedError

    def has_values(self, function: Any, args: tuple) -> bool:
        """Returns whether the operator is about to compute elements that mean something."""
        return has_values(function) and not self._unwritten.is_copied_by(function, args)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(torch._C._get_dispatch_mode(key) is not None for key in _OF_TORCH):
            return function(*args, **kwargs)
        if isinstance(function, HigherOrderOperator):
            return self._in_higher_order(function, args, kwargs)
        if has_subclass(types):  # it first makes of the call what its own tensors are to do
            return NotImplemented
        copied = self._unwritten.is_copied_by(function, args)
        output = self.observed(function, args, kwargs)
        self._unwritten.note(function, args, kwargs, output, copied)
        return output

    def _in_higher_order(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Calls an operator that takes functions (cond, scan, flex_attention), and observes what is in it."""
        if function.name().startswith("flex_attention"):
            if has_subclass(map(type, tensors_in((args, kwargs)))):
                return function(*args, **kwargs)
            if not self.looks_into_attention:
                return self.observed(function, args, kwargs)
            with self:
                return function.dispatch(_DENSE_KEY, *args, **kwargs)
        # The kernels of the others do not allow a mode around them, but in the functions.
        args, kwargs = tree_map(self._observing, (args, kwargs))
        return function(*args, **kwargs)

    def _observing(self, value: Any) -> Any:
        if not callable(value) or isinstance(value, torch.Tensor | type):
            return value

        @functools.wraps(value)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return called


def refuse_capture(tool: str, does: str) -> None:
    """Raises RuntimeError if the current stream captures a graph, which the host cannot wait for."""
    module = torch.get_device_module(device_type())
    if module.is_initialized() and module.is_current_stream_capturing():
        raise RuntimeError(
            f"{tool} {does}, which cannot be done while a stream captures a graph. Capture the graph outside"
            f" of the block of {tool}, or run the model without a graph in it."
        )
