"""What Triton calls instead of its compiler, and instead of timing configurations."""

from __future__ import annotations

import os
import threading
from typing import Any

from vccl._triton import driver

_lock = threading.Lock()
_learnt = False


def compiled(jit: Any, key: Any, signature: Any, device: int, constexprs: Any, options: Any) -> Any:
    """Returns a kernel for these types, which Triton keeps for further launches."""
    _prepare()
    from vccl._triton.kernel import CardKernel

    cache, _, target, *_ = jit.device_caches[device]
    cache[key] = CardKernel(jit, signature, options, target)
    return cache[key]


def _prepare() -> None:
    global _learnt
    with _lock:
        if not _learnt:
            _teach()
            _learnt = True


def _teach() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Triton kernels on virtual cards need numpy, with which Triton interprets them: pip install numpy"
        ) from error
    from vccl._triton import language

    language.teach_tensors()


def is_timing_asked_for(tuner: Any) -> bool:
    """Returns whether the configurations of `triton.autotune` are to be timed on cards.

    The time of an interpreted kernel says nothing about a GPU, and costs much. So the first configuration is
    taken that the kernel's own rules leave, unless VDEV_TRITON_AUTOTUNE is 1, or the program gives a function
    ``do_bench`` of its own.

    Raises:
        ValueError: VDEV_TRITON_AUTOTUNE has a value that is not allowed.
    """
    asked = os.environ.get("VDEV_TRITON_AUTOTUNE") or "0"
    if asked not in ("0", "1"):
        raise ValueError(f"VDEV_TRITON_AUTOTUNE is {asked!r}, but must be 0 or 1.")
    if not driver.is_active() or asked == "1":
        return True
    is_old_form = tuner.num_warmups is not None or tuner.num_reps is not None or tuner.use_cuda_graph
    return tuner._do_bench is not None and not is_old_form
