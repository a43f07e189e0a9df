"""What torch.utils.cpp_extension is told in pose: where its CUDA toolkit is, and what to link."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vccl import _C

TOOLKIT = Path(__file__).resolve().parent / "toolkit"
# vccl.library_path, with vccl.include_path beside it.
_LIBRARY = Path(_C.__file__).parent


def set_toolkit(cpp_extension: Any) -> None:
    """Makes vccl's toolkit the CUDA toolkit of ``torch.utils.cpp_extension``.

    A toolkit of the machine is passed over, because its compiler makes code for GPUs.
    """
    cpp_extension.CUDA_HOME = str(TOOLKIT)
    cpp_extension.CUDNN_HOME = None
    # toolkit/bin/nvcc is a script, and must find a Python where none is called python3.
    os.environ["_VCCL_PYTHON"] = sys.executable
    # A compiler that torch would call in the place of nvcc makes code for GPUs, too.
    os.environ.pop("PYTORCH_NVCC", None)


def include_paths(
    original: Callable[..., list[str]], device_type: str, *args: Any, **kwargs: Any
) -> list[str]:
    """Returns the folders of headers, in which vccl's come before torch's that need CUDA's libraries."""
    paths = original(device_type, *args, **kwargs)
    if device_type != "cuda":
        return paths
    ours = str(TOOLKIT / "include")
    return [ours, *(path for path in paths if path != ours), str(_LIBRARY.parent / "include")]


def library_flags() -> list[str]:
    """Returns the linker's flags for the library that the headers call."""
    return [f"-L{_LIBRARY}", "-lvccl", f"-Wl,-rpath,{_LIBRARY}"]
