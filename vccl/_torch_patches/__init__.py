"""The changes that vccl makes to torch where torch has no interface for them.

Torch finds built-in backends and devices by name or type in a number of places, and a backend from outside
falls through. Each module in ``device/`` and ``distributed/`` holds one patch, which changes such places for
vccl and hands every other call to torch's own function. docs/inside/torch.md lists the patches.
"""

import importlib

from vccl._torch_patches.registry import Patch

# In the order in which they are applied. Several replace the same function, and the last one is called first.
DEVICE_PATCHES = (
    "dlpack_device",
    "switches",
    "process_sharing",
    "inductor",
    "inductor_fallback",
    "fake_convolution",
    "flex_attention",
    "triton_kernels",
    "triton_in_dynamo",
    "cuda_extensions",
    "stream_priority",
)
DISTRIBUTED_PATCHES = (
    "default_backend",
    "rendezvous",
    "gloo_beside_vccl",
    "debug_wrapper",
    "group_names",
    "group_descriptions",
    "sequence_numbers",
    "flight_recorder",
    "capabilities",
    "timeouts",
    "shrink_group",
    "split_lists",
    "monitored_barrier",
    "coalescing",
    "ddp",
    "ddp_content",
    "all_gather_backward",
    "torchrun_abbreviations",
    "attention_sharding",
    "objects_without_numpy",
    "pipeline_generators",
    "symmetric_memory",
    "micro_pipelining",
)


def patch(name: str) -> Patch:
    """Returns the patch with this name, which is in ``device/`` or ``distributed/``."""
    folder = "device" if name in DEVICE_PATCHES else "distributed"
    return importlib.import_module(f"{__name__}.{folder}.{name}").PATCH


def apply_to_device() -> None:
    """Applies the patches that the device needs. Call this once, after the registration."""
    for name in DEVICE_PATCHES:
        patch(name).apply()


def apply_to_distributed() -> None:
    """Applies the patches that the backend needs. Call this once, after the registration."""
    for name in DISTRIBUTED_PATCHES:
        patch(name).apply()
