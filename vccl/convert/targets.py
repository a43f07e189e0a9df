"""Lists what each name of torch.cuda becomes. It is data alone, and imports neither torch nor LibCST."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Says what replaces a function or class of torch.cuda, and how its arguments change."""

    path: str  # behind `torch.`
    # Parameters that the replacement takes by position only: their keyword goes.
    no_keyword: tuple[str, ...] = ()
    # The keyword that the replacement wants for what stands at a position here; "" where it wants none.
    keywords: tuple[str, ...] = ()
    # Whether the replacement has the device's type as one more argument, before the others.
    device_type_first: bool = False
    # Parameters that the replacement lacks: a call that gives one of them is left.
    refused: tuple[str, ...] = ()
    # Whether the call does nothing without CUDA, while the replacement raises without an accelerator.
    guarded: bool = False


def _accelerator(name: str, guarded: bool = False) -> Target:
    return Target(f"accelerator.{name}", no_keyword=("device",), guarded=guarded)


def _module(name: str, guarded: bool = False) -> Target:
    return Target(f"get_device_module().{name}", guarded=guarded)


# The names are those behind `torch.cuda.`
TARGETS: dict[str, Target] = {
    "OutOfMemoryError": Target("OutOfMemoryError"),
    "is_available": _accelerator("is_available"),
    "device_count": _accelerator("device_count"),
    "current_device": _accelerator("current_device_index"),
    "set_device": _accelerator("set_device_index"),
    "synchronize": _accelerator("synchronize"),
    "current_stream": _accelerator("current_stream"),
    "set_stream": _accelerator("set_stream"),
    # Memory.
    "empty_cache": _accelerator("empty_cache", guarded=True),
    "mem_get_info": _accelerator("get_memory_info"),
    "memory_allocated": _accelerator("memory_allocated"),
    "max_memory_allocated": _accelerator("max_memory_allocated"),
    "memory_reserved": _accelerator("memory_reserved"),
    "max_memory_reserved": _accelerator("max_memory_reserved"),
    "memory_cached": _accelerator("memory_reserved"),
    "max_memory_cached": _accelerator("max_memory_reserved"),
    "memory_stats": _accelerator("memory_stats"),
    "reset_peak_memory_stats": _accelerator("reset_peak_memory_stats"),
    "reset_max_memory_allocated": _accelerator("reset_peak_memory_stats"),
    "reset_max_memory_cached": _accelerator("reset_peak_memory_stats"),
    "reset_accumulated_memory_stats": _accelerator("reset_accumulated_memory_stats"),
    "memory_summary": _module("memory_summary"),
    "set_per_process_memory_fraction": _module("set_per_process_memory_fraction"),
    # Streams and events.
    "Stream": Target("Stream", keywords=("", "priority")),
    "Event": Target("Event", keywords=("enable_timing", "blocking", "interprocess"), refused=("external",)),
    "stream": _module("stream"),
    "default_stream": _module("default_stream"),
    # device_index takes an int or None only; torch_cuda.py uses it where the argument is an int for sure.
    "device": _module("device"),
    "device_of": _module("device_of"),
    # Random numbers.
    "manual_seed": _module("manual_seed", guarded=True),
    "manual_seed_all": _module("manual_seed_all", guarded=True),
    "seed": _module("seed", guarded=True),
    "seed_all": _module("seed_all", guarded=True),
    "initial_seed": _module("initial_seed"),
    "get_rng_state": _module("get_rng_state"),
    "get_rng_state_all": _module("get_rng_state_all"),
    "set_rng_state": _module("set_rng_state"),
    "set_rng_state_all": _module("set_rng_state_all", guarded=True),
    # About the device.
    "get_device_name": _module("get_device_name"),
    "get_device_properties": _module("get_device_properties"),
    "is_bf16_supported": _module("is_bf16_supported"),
    "is_initialized": _module("is_initialized"),
    "init": _module("init"),
    # Mixed precision.
    "amp.autocast": Target(
        "amp.autocast", keywords=("enabled", "dtype", "cache_enabled"), device_type_first=True
    ),
    "amp.GradScaler": Target("amp.GradScaler", device_type_first=True),
}
INT_DEVICE = Target("accelerator.device_index", no_keyword=("device",))


def without_submodule(name: str) -> str:
    """Returns the short name of what stands behind `torch.cuda.`: `max_memory_allocated` for `memory.`'s."""
    for prefix in ("memory.", "random.", "streams."):
        if name.removeprefix(prefix) in TARGETS:
            return name.removeprefix(prefix)
    for module in ("amp.autocast_mode.", "amp.grad_scaler."):
        if name.startswith(module):
            return "amp." + name.removeprefix(module)
    return name


# ---- functions of torch whose arguments name a device

# The position of a parameter that takes a torch.device or a string, and its keyword.
DEVICE_PARAMETERS: dict[str, tuple[int, str]] = {
    "torch.load": (1, "map_location"),
    "torch.jit.load": (1, "map_location"),
    "torch.set_default_device": (0, "device"),
    "torch.get_device_module": (0, "device"),
    "torch.Generator": (0, "device"),
    "torch.Stream": (0, "device"),
    "torch.Event": (0, "device"),
    "torch.accelerator.synchronize": (0, "device"),
    "torch.accelerator.current_stream": (0, "device"),
    "torch.distributed.get_default_backend_for_device": (0, "device"),
}

# The same for a parameter that has to be the name of a type of device.
TYPE_PARAMETERS: dict[str, tuple[int, str]] = {
    "torch.autocast": (0, "device_type"),
    "torch.amp.autocast": (0, "device_type"),
    "torch.amp.autocast_mode.autocast": (0, "device_type"),
    "torch.amp.is_autocast_available": (0, "device_type"),
    "torch.amp.custom_fwd": (1, "device_type"),
    "torch.amp.custom_bwd": (1, "device_type"),
    "torch.amp.GradScaler": (0, "device"),
    "torch.amp.grad_scaler.GradScaler": (0, "device"),
    "torch.is_autocast_enabled": (0, "device_type"),
    "torch.get_autocast_dtype": (0, "device_type"),
    "torch.set_autocast_dtype": (0, "device_type"),
    "torch.set_autocast_enabled": (0, "device_type"),
    "torch.distributed.init_device_mesh": (0, "device_type"),
    "torch.distributed.device_mesh.init_device_mesh": (0, "device_type"),
    "torch.distributed.DeviceMesh": (0, "device_type"),
    "torch.distributed.device_mesh.DeviceMesh": (0, "device_type"),
    "torch.distributed.tensor.init_device_mesh": (0, "device_type"),
    "torch.distributed.tensor.DeviceMesh": (0, "device_type"),
    "torch.device": (0, "type"),
}

# What else the changes use.
ALSO_USED = (
    "accelerator.current_accelerator",
    "accelerator.is_available",
    "distributed.get_default_backend_for_device",
    "device",
    INT_DEVICE.path,
)
