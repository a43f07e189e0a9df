"""The tensor types and storages of ``torch.vdev``, which torch's first versions had for each device.

``torch.vdev.FloatTensor(2, 3)`` is an older way to write ``torch.empty(2, 3, device="vdev")``, and
``isinstance(x, torch.vdev.FloatTensor)`` asks for device, layout and dtype at once.
``torch.set_default_tensor_type()`` takes only torch's own types. ``torch.set_default_device("vdev")`` does
the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import _LegacyStorage

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}
# torch has no tensor types for these.
_STORAGES_ONLY = ("ComplexDouble", "ComplexFloat")
_MODULE = "torch.vdev"


class _TensorType(type):
    dtype: torch.dtype

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"  # the name begins with the module

    def __call__(cls, *arguments: Any, device: Any = "vdev") -> torch.Tensor:
        return torch.empty(0, dtype=cls.dtype, device=device).new(*arguments)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "vdev"
            and instance.layout == torch.strided
            and instance.dtype == cls.dtype
        )


def types() -> dict[str, type]:
    """Returns every type and storage by its name in ``torch.vdev``."""
    made: dict[str, type] = {}
    for kind, dtype in _DTYPES.items():
        storage = f"{kind}Storage"
        dtypes = {"dtype": dtype, "_dtype": dtype}
        made[storage] = type(storage, (_LegacyStorage,), {**dtypes, "__module__": _MODULE})
        if kind not in _STORAGES_ONLY:
            # Tensor.type() reads the whole name from the type's own name.
            tensor = f"{kind}Tensor"
            made[tensor] = _TensorType(f"{_MODULE}.{tensor}", (), {"dtype": dtype, "__module__": _MODULE})
    return made
