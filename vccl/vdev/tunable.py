"""Answers that no operator is tuned, under the names of ``torch.cuda.tunable``.

The cards run the CPU's kernels, which cannot be tuned. Names that are not here are refused (refused.py).
"""

from __future__ import annotations

from vccl._cards.no_gpu import TUNING, NoGpuError


def _refuse_on(enable: bool = True) -> None:
    if enable:
        raise NoGpuError("torch.vdev.tunable", TUNING)


def is_enabled() -> bool:
    """Returns False."""
    return False


def tuning_is_enabled() -> bool:
    """Returns False."""
    return False


def record_untuned_is_enabled() -> bool:
    """Returns False."""
    return False


def enable(val: bool = True) -> None:
    """Changes nothing for False. Raises NoGpuError for True."""
    _refuse_on(val)


def tuning_enable(val: bool = True) -> None:
    """Changes nothing for False. Raises NoGpuError for True."""
    _refuse_on(val)


def record_untuned_enable(val: bool = True) -> None:
    """Changes nothing for False. Raises NoGpuError for True."""
    _refuse_on(val)
