"""Says what to do by hand about each thing that the tool leaves as it is."""

import re

# The longest prefix of the full name counts. An entry ends where a part of the name ends.
NAMES: dict[str, str] = {
    "torch.cuda": "CUDA alone has it: take it out, or run it on CUDA only",
    "torch.cuda.nvtx": "CUDA's profiler alone reads these marks: use torch.profiler.record_function",
    "torch.cuda.profiler": "CUDA's profiler alone listens: use torch.profiler",
    "torch.cuda.CUDAGraph": "use torch.accelerator.Graph and its capture on a stream of your own",
    "torch.cuda.graph": "use torch.accelerator.Graph and its capture on a stream of your own",
    "torch.cuda.graphs": "use torch.accelerator.Graph and its capture on a stream of your own",
    "torch.cuda.make_graphed_callables": "on virtual cards: torch.vdev.make_graphed_callables",
    "torch.cuda.amp": "use torch.amp, which takes the device type as an argument",
    "torch.cuda.amp.custom_fwd": "use torch.amp.custom_fwd(device_type=...) if it calls no CUDA kernel",
    "torch.cuda.amp.custom_bwd": "use torch.amp.custom_bwd(device_type=...) if it calls no CUDA kernel",
    "torch.cuda.nccl": "NCCL alone: use torch.distributed",
    "torch.cuda.comm": "use torch.distributed, with one process for each device",
    "torch.cuda.get_device_capability": "the compute capability of a GPU: ask for what you need instead, as "
    "torch.get_device_module().is_bf16_supported()",
    "torch.cuda.utilization": "pynvml's figures: other devices have their own tools",
    "torch.cuda.temperature": "pynvml's figures: other devices have their own tools",
    "torch.cuda.power_draw": "pynvml's figures: other devices have their own tools",
    "torch.cuda.clock_rate": "pynvml's figures: other devices have their own tools",
    "torch.cuda.list_gpu_processes": "on virtual cards: torch.vdev.list_gpu_processes",
    "torch.cuda.memory": "the allocator of CUDA alone: use torch.accelerator.memory_stats()",
    "torch.cuda.memory_snapshot": "the allocator of CUDA alone: use torch.accelerator.memory_stats()",
    **{
        f"torch.cuda.{name}Tensor": "a type of CUDA tensors: make the tensor with dtype=... and device=..."
        for name in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    },
    "torch.backends.cudnn": "cuDNN's settings have no effect on other devices: they can stay",
    "torch.backends.cuda": "CUDA's settings have no effect on other devices: they can stay",
    "torch.version.cuda": "the version of CUDA; it is None in a build without",
    "torch.profiler.ProfilerActivity.CUDA": "leave `activities` out: the default is what the device has",
    "torch.autograd.profiler.ProfilerActivity.CUDA": "use torch.profiler, and leave `activities` out",
    "torch.autograd.profiler.emit_nvtx": "CUDA's profiler alone reads these marks: use torch.profiler",
    "torch.distributed.is_nccl_available": "use torch.distributed.is_backend_available(name), or let "
    "init_process_group() choose",
    "torch.distributed.ProcessGroupNCCL": "NCCL alone: leave it out, or use it on CUDA only",
    "torch.Tensor.cuda": "the method is not called here: use a function that calls .to(device)",
    "torch.nn.Module.cuda": "the method is not called here: use a function that calls .to(device)",
    "torch.set_autocast_gpu_dtype": "use torch.set_autocast_dtype(device_type, dtype)",
    "torch.get_autocast_gpu_dtype": "use torch.get_autocast_dtype(device_type)",
    "torch.utils.cpp_extension.CUDAExtension": "compiles CUDA kernels: other devices need their own",
    "torch.utils.cpp_extension.CUDA_HOME": "the CUDA toolkit: other devices do not need it",
}

# Modules that work with CUDA alone, or nearly so.
MODULES: dict[str, str] = {
    "triton": "Triton's kernels: give devices without Triton a version in torch's operators",
    "pynvml": "NVIDIA's management library: skip it on other devices",
    "nvidia_smi": "NVIDIA's management library: skip it on other devices",
    "nvidia": "NVIDIA's libraries: skip them on other devices",
    "cupy": "works on CUDA memory: use torch's operators",
    "numba.cuda": "CUDA kernels: use torch's operators",
    "pycuda": "CUDA's driver: use torch's operators",
    "apex": "CUDA kernels: use torch.amp, and DistributedDataParallel of torch",
    "flash_attn": "CUDA kernels: use torch.nn.functional.scaled_dot_product_attention",
    "xformers": "mostly CUDA kernels: use torch.nn.functional.scaled_dot_product_attention",
    "bitsandbytes": "mostly CUDA kernels: use an optimizer of torch on other devices",
    "transformer_engine": "CUDA kernels: use torch's layers on other devices",
}

# Whole strings.
STRINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"CUDA_VISIBLE_DEVICES"),
        "other devices have a variable of their own (virtual cards: VDEV_VISIBLE_DEVICES)",
    ),
    (
        re.compile(r"(?:PYTORCH_)?CUDA_[A-Z0-9_]+|CUBLAS_[A-Z0-9_]+"),
        "CUDA alone reads this variable: it can stay",
    ),
    (re.compile(r"(?:TORCH_)?NCCL_[A-Z0-9_]+"), "NCCL alone reads this variable: it can stay"),
    (
        re.compile(r"torch\.cuda\.\w*Tensor"),
        "a type of CUDA tensors: use torch.set_default_dtype and torch.set_default_device",
    ),
    (re.compile(r"torch\.cuda\.[\w.]+"), "if it is looked up as a name, write the name that takes its place"),
    (
        re.compile(r"(?:self_)?cuda_(?:time|memory_usage)(?:_total)?"),
        "a column of the profiler's table: write `device` for `cuda`",
    ),
    (
        re.compile(r".*\bcuda:nccl\b.*"),
        "leave the backend out: each device then gets its default backend",
    ),
    (
        re.compile(r"nccl"),
        "if it chooses a backend, torch.distributed.get_default_backend_for_device(device) does that",
    ),
    (
        re.compile(r"cuda(?::.*)?"),
        "if it names a device, use torch.accelerator.current_accelerator() or its .type",
    ),
)


def about_name(name: str) -> str:
    """Returns what to do about a full name, such as `torch.cuda.nvtx.range_push`, or "" if nothing."""
    parts = name.split(".")
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((NAMES[prefix] for prefix in prefixes if prefix in NAMES), "")


def about_module(name: str) -> str:
    """Returns what to do about the import of a module, or "" if nothing."""
    return next((text for module, text in MODULES.items() if f"{name}.".startswith(f"{module}.")), "")


def about_string(value: str) -> str:
    """Returns what to do about a string, or "" if nothing."""
    return next((text for pattern, text in STRINGS if pattern.fullmatch(value)), "")
