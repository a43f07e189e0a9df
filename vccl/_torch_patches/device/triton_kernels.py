"""Lets Triton's kernels run on cards (docs/compile.md), where Triton would compile them for a GPU.

Triton takes devices from outside of it by a compiler that makes a binary and a launcher in C. A card has
neither: it runs the kernel's source.
"""

from collections.abc import Callable
from typing import Any

from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='a Triton kernel that is launched on a card\'s tensors ends with "0 active drivers ([])"',
    until="Triton has an interpreter as one of its backends",
    after_import_of="triton",
)


@PATCH.replaces(
    "triton.runtime.jit:JITFunction._do_compile",
    "(self, key, signature, device, constexprs, options, attrs, warmup)",
)
def _do_compile(
    original: Callable[..., Any],
    self: Any,
    key: Any,
    signature: Any,
    device: int,
    constexprs: Any,
    options: Any,
    *more: Any,
    **named: Any,
) -> Any:
    from vccl._triton import driver, launches

    if not driver.is_active():
        return original(self, key, signature, device, constexprs, options, *more, **named)
    return launches.compiled(self, key, signature, device, constexprs, options)


@PATCH.replaces("triton.runtime.autotuner:Autotuner._bench", "(self, *args, config, **meta)")
def _bench(original: Callable[..., Any], self: Any, *args: Any, **meta: Any) -> Any:
    from vccl._triton import launches

    if launches.is_timing_asked_for(self):
        return original(self, *args, **meta)
    return [0.0, 0.0, 0.0]


@PATCH.action
def _activate() -> None:
    from vccl._triton import driver

    driver.activate()
