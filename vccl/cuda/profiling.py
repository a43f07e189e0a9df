"""Makes torch's profiler offer the activity of CUDA, which the cards have.

Torch's build without CUDA lists no activity but the CPU's, and a profile that asks for CUDA's falls back to
events around each operator. The cards' tracer is in the compiled module.
"""

import functools
from typing import Any

import torch
from torch.autograd import ProfilerActivity


def install() -> None:
    """Replaces the function that lists the activities, under each name that torch holds it by."""
    listed = torch.autograd._supported_activities

    @functools.wraps(listed)
    def supported_activities() -> set[ProfilerActivity]:
        return {*listed(), ProfilerActivity.CUDA}

    # Torch's stubs do not have the name.
    modules: tuple[Any, ...] = (torch._C._autograd, torch.autograd, torch.autograd.profiler, torch.profiler)
    for module in modules:
        module._supported_activities = supported_activities
