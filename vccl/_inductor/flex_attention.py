"""Compiles the forward of FlexAttention with Inductor's C++ template, as for the CPU.

Inductor takes that template for tensors whose device type is "cpu", and Triton's for others. The template has
no backward. A graph that needs one is refused here, and then runs eagerly (inductor_fallback.py).
"""

from collections.abc import Callable
from typing import Any

from vccl._device_type import device_type


def register() -> None:
    """Has Inductor lower FlexAttention on cards as on the CPU."""
    import torch
    from torch._inductor.lowering import lowerings

    operators = torch.ops.higher_order
    for operator, on_card in (
        (operators.flex_attention, _lower_forward),
        (operators.flex_attention_backward, _refuse_backward),
    ):
        lowerings[operator] = _for_cards(on_card, lowerings[operator])


def _for_cards(on_card: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    def lower(query: Any, *arguments: Any) -> Any:
        chosen = on_card if query.get_device().type == device_type() else elsewhere
        return chosen(query, *arguments)

    return lower


def _lower_forward(
    query: Any, key: Any, value: Any, score: Any, mask: Any, scale: Any, options: dict[str, Any], *more: Any
) -> Any:
    from torch._inductor.kernel.flex.flex_cpu import lower_cpu

    if options["OUTPUT_LOGSUMEXP"]:
        _refuse_backward()
    return lower_cpu(query, key, value, score, mask, scale, options, *more)


def _refuse_backward(*arguments: Any) -> Any:
    raise NotImplementedError(
        "FlexAttention in C++ has no backward and returns no logsumexp, so it is compiled under "
        "torch.no_grad() only"
    )
