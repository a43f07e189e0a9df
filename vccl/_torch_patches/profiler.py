"""Warns, once a process, that the profiler records nothing of the cards.

Torch offers ``ProfilerActivity.VDEV`` for every accelerator, and ``torch.profiler.profile`` asks for it by
default. Without a tracer of the device the trace lacks the device, and torch does not say so. Processes that
have used no card get no warning.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from torch.autograd import ProfilerState, profiler

from vccl import _C
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="a profile that asks for the cards' activity, as it does by default, silently has none",
    until="the cards have a tracer",
)


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "The profile has no activity of vdev, because the cards have no tracer yet. The operators are in "
        "it as activity of the CPU, which runs them. torch.autograd.profiler.profile(use_device='vdev', "
        "use_kineto=False) also gives each range its time on the card's stream.",
        stacklevel=4,
    )


@PATCH.replaces("torch.autograd.profiler:profile.__exit__", "(self, exc_type, exc_val, exc_tb)")
def _exit(original: Callable[..., Any], self: profiler.profile, *exc: object) -> Any:
    result = original(self, *exc)
    asked_for_cards = self.enabled and self.profiler_kind == ProfilerState.KINETO_PRIVATEUSE1
    if asked_for_cards and _C.is_initialized():
        _warn_once()
    return result
