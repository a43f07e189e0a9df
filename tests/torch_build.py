"""Which build of torch the tests run with."""

from pathlib import Path

import pytest
import torch

# What torch says of itself is no answer: in pose it says that it was built with CUDA.
WITH_CUDA = (Path(torch.__file__).parent / "lib" / "libtorch_cuda.so").exists()

# For tests of what torch does, or vccl does in its place, where torch was built without CUDA.
without_cuda = pytest.mark.skipif(WITH_CUDA, reason="this torch was built with CUDA")
