"""The exceptions of ``torch.cuda``, for programs that catch them by name."""

import torch

AcceleratorError = torch.AcceleratorError
OutOfMemoryError = torch.OutOfMemoryError


class CudaError(RuntimeError):
    """Stands for ``torch.cuda.CudaError``. No card raises it: its errors are RuntimeErrors of other types."""


class DeferredCudaCallError(Exception):
    """Stands for ``torch.cuda.DeferredCudaCallError``. No card raises it, because no call is deferred."""
