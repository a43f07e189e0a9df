"""What the tests of torch.compile share."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compiles anew, into a folder of its own, and makes an error of a graph that Inductor cannot compile."""
    import torch._dynamo

    from vccl._torch_patches.device import inductor_fallback

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", "torch.compile: Inductor cannot compile")
        with mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            inductor_fallback._warn.cache_clear()
            yield
            torch._dynamo.reset()
