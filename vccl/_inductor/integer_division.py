"""Truncated quotients of integers in compiled code, without a signal where the divisor is zero.

Inductor (torch 2.13) divides as C++ does, which ends the process. A GPU gives some number.
"""

from collections.abc import Callable
from typing import Any

from vccl._device_type import device_type


def register() -> None:
    """Has Inductor divide by one on cards where a tensor of divisors is zero."""
    from torch._inductor import lowering

    lowering.truncdiv = _for_cards(lowering.truncdiv)


def _for_cards(truncated: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    import torch
    from torch._inductor.ir import TensorBox
    from torch._inductor.lowering import lowerings, where

    is_equal = lowerings[torch.ops.aten.eq.Scalar]

    def divide(dividend: Any, divisor: Any) -> Any:
        device = divisor.get_device() if isinstance(divisor, TensorBox) else None
        if device is not None and device.type == device_type():
            divisor = where(is_equal(divisor, 0), 1, divisor)
        return truncated(dividend, divisor)

    return divide
