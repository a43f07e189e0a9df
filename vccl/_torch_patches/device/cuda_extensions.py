"""Refuses to build an extension with CUDA sources, and says why.

Torch looks for a CUDA toolkit, and tells the user to set CUDA_HOME. But no toolkit would help: a torch
without CUDA cannot load the extension, and a card could not run its kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from vccl._cards.no_gpu import NoGpuError
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="building an extension with CUDA sources ends with the advice to set CUDA_HOME, which does not "
    "help",
    until="torch says that it was built without CUDA",
    # Cards in pose tell a version of CUDA.
    needed=lambda: torch.version.cuda is None or device_type() == "cuda",
    after_import_of="torch.utils.cpp_extension",
)


@PATCH.replaces(
    # Both load() and load_inline() call it.
    "torch.utils.cpp_extension:_jit_compile",
    "(name, sources, extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags, extra_include_paths, "
    "build_directory, verbose, with_cuda, with_sycl, is_python_module, is_standalone, "
    "keep_intermediates=...)",
)
def _jit_compile(
    original: Callable[..., Any], name: str, sources: Sequence[str], *args: Any, **kwargs: Any
) -> Any:
    if any(str(source).endswith((".cu", ".cuh")) for source in sources):
        _refuse(name)
    return original(name, sources, *args, **kwargs)


@PATCH.replaces("torch.utils.cpp_extension:CUDAExtension", "(name, sources, *args, **kwargs)")
def _cuda_extension(original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> NoReturn:
    _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise NoGpuError(
        f"The extension {name!r}, which has CUDA sources,",
        "Build it from its C++ sources alone (load_inline without cuda_sources), or use operators of torch.",
    )
