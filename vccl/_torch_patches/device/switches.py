"""Lets operators that are queued on a card run with the switches of their call.

Kernels read torch's default dtype, its deterministic mode and the settings of oneDNN when they run, which is
later than the call for a task of a stream. So the streams are drained before such a switch changes.
"""

from collections.abc import Callable
from typing import Any

from vccl import _C
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="operators that are queued on a card run with a default dtype, a deterministic mode or settings "
    "of oneDNN that the program chose after their call",
    until="torch asks devices before it changes what kernels depend on",
)

# torch.backends.mkldnn stands for the module `m`, and its properties call what they were made with.
_SWITCHES = {
    "torch:set_default_dtype": "(d, /)",
    "torch:set_default_tensor_type": "(t, /)",
    "torch:use_deterministic_algorithms": "(mode, *, warn_only=...)",
    "torch:set_deterministic_debug_mode": "(debug_mode)",
    "torch:set_float32_matmul_precision": "(precision)",
    "torch.backends.mkldnn:m.set_flags": (
        "(_enabled=..., _deterministic=..., _allow_tf32=..., _fp32_precision=...)"
    ),
    "torch.backends:ContextProp.__set__": "(self, obj, val)",
}


def _drain_first(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _C.drain_cards()
    return original(*args, **kwargs)


for _attribute, _parameters in _SWITCHES.items():
    PATCH.replaces(_attribute, _parameters)(_drain_first)
