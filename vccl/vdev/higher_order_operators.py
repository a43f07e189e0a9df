"""Lets torch's higher-order operators (cond, scan, flex_attention, ...) run under the cards' autocast.

Torch lets such an operator pass the autocast keys of the devices that it knows. At the cards' key it raises
"could not find kernel". In pose the key is CUDA's, and nothing is needed.
"""

from typing import Any

import torch
from torch._C import DispatchKey

from vccl._torch_patches import imports

_KEY: DispatchKey = getattr(DispatchKey, "AutocastPrivateUse1")  # noqa: B009 (the stub lacks it)


def register() -> None:
    """Lets all higher-order operators pass the cards' autocast, which flex_attention is cast for."""
    ops = torch._ops
    ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)  # for those that are made later
    for operator in ops._higher_order_ops.values():
        operator.fallthrough(_KEY)
    imports.after("torch._higher_order_ops.flex_attention", _cast_flex_attention)


def _cast_flex_attention() -> None:
    """Casts its arguments to autocast's dtype, as torch does for the devices that it knows."""
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch.amp.autocast_mode import _cast

    def under_autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any) -> Any:
        card = query.device.type
        dtype = torch.get_autocast_dtype(card)
        cast = [_cast(tensor, card, dtype) for tensor in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return flex_attention(*cast, *more)

    flex_attention.py_impl(_KEY)(under_autocast)
