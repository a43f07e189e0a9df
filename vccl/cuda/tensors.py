"""Tensor types and storages of ``torch.cuda``, whose making torch refuses in a build without CUDA."""

from typing import Any

import torch

from vccl import _C
from vccl._cards import cuda_handles

_LEGACY = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _StorageMethods:
    """Replacements of methods of ``torch.UntypedStorage``."""

    # What torch's class has, for storages of other devices.
    new: Any = torch.UntypedStorage.__new__
    resize: Any = torch.UntypedStorage.resize_

    @staticmethod
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return _StorageMethods.new(cls, *args, **kwargs)
        values = args[0] if args else kwargs.get("size", 0)
        if isinstance(values, int):
            return torch.empty(values, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(values), dtype=torch.uint8, device=device).untyped_storage()

    @staticmethod
    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            return _StorageMethods.resize(self, size)
        _C._resize_storage(self, size)
        return self


def _set_default_tensor_type(tensor_type: Any) -> None:
    name = tensor_type if isinstance(tensor_type, str) else f"{tensor_type.__module__}.{tensor_type.__name__}"
    if not name.startswith("torch.cuda."):
        if torch.get_default_device().type == "cuda":
            torch.set_default_device(None)
        _original_default(tensor_type)
        return
    dtype = _LEGACY.get(name.removeprefix("torch.cuda."))
    if dtype is None:
        raise TypeError(f"invalid type object: {name} is no tensor type of torch.cuda")
    torch.set_default_dtype(dtype)
    torch.set_default_device("cuda")


_original_default: Any = torch._C._set_default_tensor_type


def install() -> None:
    """Lets the types make tensors, and storages of cards be made, resized and shared."""
    for name, dtype in _LEGACY.items():
        _C._make_legacy_type(getattr(torch.cuda, name), dtype, False)
        if dtype != torch.bool:  # there is no torch.cuda.sparse.BoolTensor
            _C._make_legacy_type(getattr(torch.cuda.sparse, name), dtype, True)
    storage: Any = torch.UntypedStorage
    storage.__new__ = _StorageMethods.__new__
    storage.resize_ = _StorageMethods.resize_
    storage._share_cuda_ = cuda_handles._share_cuda_
    storage._new_shared_cuda = classmethod(cuda_handles._new_shared_cuda)
    storage._release_ipc_counter_cuda = classmethod(cuda_handles._release_ipc_counter_cuda)
    compiled: Any = torch._C
    compiled._set_default_tensor_type = _set_default_tensor_type
