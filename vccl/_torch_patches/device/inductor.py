"""Lets Inductor plan the code for a card as it plans code for the CPU.

The C++ generator serves any device that it is registered for. The steps before it take every device but the
CPU for a GPU: the scheduler reorders loops in ways that the C++ generator cannot follow, argmax counts in
memory order, thresholds are those of GPUs, and dtypes are
not followed through the code, as Triton does that itself.
"""

from collections.abc import Callable
from typing import Any

from vccl import _device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="`torch.compile` fails on a card where a reduction could be fused with what is around it: "
    "\"can't multiply sequence by non-int of type 'tuple'\"",
    until="Inductor asks the device's scheduling where it asks whether the device is the CPU",
    after_import_of="torch._inductor.compile_fx",
)


@PATCH.replaces("torch._inductor.scheduler:BaseSchedulerNode.is_cpu", "(self)")
def _is_cpu(original: Callable[..., bool], self: Any) -> bool:
    device = self.get_device()
    return original(self) or (device is not None and device.type == _device_type.device_type())


@PATCH.replaces("torch._inductor.ir:get_device_type", "(x)")
def _get_device_type(original: Callable[..., str | None], x: Any) -> str | None:
    found = original(x)
    return "cpu" if found == _device_type.device_type() else found


@PATCH.replaces(
    "torch._inductor.utils:get_current_backend",
    "(device_type=...)",
    aliases=(
        "torch._inductor.codegen.common:get_current_backend",
        "torch._inductor.kernel.mm_common:get_current_backend",
        "torch._inductor.scheduler:get_current_backend",
    ),
)
def _get_current_backend(original: Callable[..., str], device_type: str | None = None) -> str:
    from torch._inductor.virtualized import V

    asked = device_type or V.graph.get_current_device_or_throw().type
    return "cpp" if asked == _device_type.device_type() else original(device_type)
