"""Adds the device and the backend to torch, whole or not at all.

This module outlives a failed import of the package, so that the second attempt tells the first one's error.
"""

import os
import sys

_is_loaded = False
_failure: Exception | None = None


def load() -> None:
    """Adds the device and the backend to torch. Further calls do nothing.

    After an error of this function no card can be seen, and further calls raise ImportError.

    Raises:
        ImportError: the installed torch is not of the version that this package was built for, another
            library has taken the place of the cards in torch, the compiled module cannot be loaded, or an
            earlier call failed.
        RuntimeError: VDEV_POSE asks for CUDA, and torch was built with it.
        ValueError: VCCL_SHARE_CPU has a value that is not allowed.
    """
    global _is_loaded, _failure
    if _is_loaded:
        return
    if _failure is not None:
        raise ImportError(f"vccl could not add its cards to torch: {_failure}") from _failure
    from torch.utils._python_dispatch import _disable_current_modes

    from vccl import _torch_version

    _torch_version.check()
    _torch_version.check_pose()
    _torch_version.check_device()
    try:
        # TORCH_CUDA_SANITIZER enables a dispatch mode before the cards are there. Operators that are called
        # while they are put in would ask the mode's torch.cuda for its stream.
        with _disable_current_modes():
            _register()
    except Exception as error:
        _failure = error
        # torch cannot forget a device, but it can be told that there are no cards.
        if compiled := sys.modules.get("vccl._C"):
            compiled.hide_cards()
        raise
    _is_loaded = True


def _register() -> None:
    from vccl._device_type import device_type

    if device_type() == "cuda":
        from vccl import cuda

        cuda.register()
        cuda.register_nccl()
    else:
        from vccl import vdev

        vdev.register()
    from vccl import distributed
    from vccl._groups import cpu_memory

    distributed.register()
    cpu_memory.share_if_asked()
    if os.environ.get("VDEV_SANITIZER"):
        from vccl import sanitizer

        sanitizer.follow_environment()
