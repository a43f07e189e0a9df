"""Builds extensions with CUDA sources for cards that pose as CUDA, and refuses them elsewhere.

Torch looks for a CUDA toolkit, and tells the user to set CUDA_HOME. But no toolkit would help: a torch
without CUDA cannot load the extension, and a card could not run its kernels. In pose, vccl has a toolkit of
its own (vccl/cuda/cpp). Under the name vdev there is no tensor that the sources would take.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vccl._cards.no_gpu import NoGpuError
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="building an extension with CUDA sources ends with the advice to set CUDA_HOME, which does not "
    "help",
    until="torch says that it was built without CUDA, and takes the toolkit of another device",
    # Cards in pose tell a version of CUDA.
    needed=lambda: torch.version.cuda is None or device_type() == "cuda",
    after_import_of="torch.utils.cpp_extension",
)


@PATCH.action
def _set_toolkit() -> None:
    if device_type() == "cuda":
        from torch.utils import cpp_extension

        from vccl.cuda.cpp import extensions

        extensions.set_toolkit(cpp_extension)


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
        _refuse_out_of_pose(name)
    return original(name, sources, *args, **kwargs)


@PATCH.replaces("torch.utils.cpp_extension:CUDAExtension", "(name, sources, *args, **kwargs)")
def _cuda_extension(original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    _refuse_out_of_pose(name)
    from vccl.cuda.cpp import extensions

    extension = original(name, *args, **kwargs)
    extension.extra_link_args = [*(extension.extra_link_args or []), *extensions.library_flags()]
    return extension


@PATCH.replaces("torch.utils.cpp_extension:include_paths", "(device_type=..., torch_include_dirs=...)")
def _include_paths(
    original: Callable[..., list[str]], device_type: str = "cpu", *args: Any, **kwargs: Any
) -> list[str]:
    if device_type != "cuda" or not _is_pose():
        return original(device_type, *args, **kwargs)
    from vccl.cuda.cpp import extensions

    return extensions.include_paths(original, device_type, *args, **kwargs)


@PATCH.replaces(
    "torch.utils.cpp_extension:_prepare_ldflags",
    "(extra_ldflags, with_cuda, with_sycl, verbose, is_standalone)",
)
def _prepare_ldflags(
    original: Callable[..., list[str]], extra_ldflags: list[str], with_cuda: bool, *args: Any
) -> list[str]:
    flags = original(extra_ldflags, with_cuda, *args)
    if not with_cuda or not _is_pose():
        return flags
    from vccl.cuda.cpp import extensions

    return [*flags, *extensions.library_flags()]


def _is_pose() -> bool:
    return device_type() == "cuda"


def _refuse_out_of_pose(name: str) -> None:
    if not _is_pose():
        raise NoGpuError(
            f"The extension {name!r}, which has CUDA sources,",
            "Use cards that pose as CUDA (VDEV_POSE=cuda), for which it is compiled, build it from its C++ "
            "sources alone (load_inline without cuda_sources), or use operators of torch.",
        )
