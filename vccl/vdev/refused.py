"""The names of torch.cuda that only a GPU can serve. Each is there, and raises NoGpuError when it is used.

docs/device.md lists every name. A name that starts to work loses its line here.
"""

from __future__ import annotations

from types import ModuleType

from vccl._cards.no_gpu import CORES, TUNING, refusal, refused_class

# What to do instead, by what the names need.
REASONS: dict[str, str] = {
    "sensors": "Use torch.vdev.memory_stats() for what the program itself uses.",
    "runtime": "Use the functions of torch.vdev. Errors of cards are RuntimeErrors.",
    "kernels": "Write the operator with PyTorch's operators, or in C++ for the CPU.",
    "libraries": "The cards run the CPU's kernels, which have no handles of cuBLAS or cuSOLVER.",
    "cores": CORES,
    "files": "Load the file into a CPU tensor, and copy it to the card.",
    "nccl": 'Use torch.vdev.comm, or torch.distributed with the backend "vccl".',
    "sparse": 'Use torch.sparse_coo_tensor(..., device="vdev").',
    "tuning": TUNING,
}

# By module ("" is torch.vdev itself) and name: the key of the reason.
FUNCTIONS: dict[str, dict[str, str]] = {
    "": {
        "check_error": "runtime",
        "clock_rate": "sensors",
        "cudart": "runtime",
        "current_blas_handle": "libraries",
        "current_solver_handle": "libraries",
        "memory_usage": "sensors",
        "power_draw": "sensors",
        "temperature": "sensors",
        "utilization": "sensors",
    },
    "gds": {"gds_deregister_buffer": "files", "gds_register_buffer": "files"},
    "jiterator": {"_create_jit_fn": "kernels", "_create_multi_output_jit_fn": "kernels"},
    "nccl": dict.fromkeys(
        (
            *("all_gather", "all_reduce", "broadcast", "init_rank", "reduce", "reduce_scatter"),
            *("unique_id", "version"),
        ),
        "nccl",
    ),
    "tunable": dict.fromkeys(
        (
            *("get_filename", "get_max_tuning_duration", "get_max_tuning_iterations", "get_results"),
            *("get_rotating_buffer_size", "get_validators", "mgpu_tune_gemm_in_file", "read_file"),
            *("set_filename", "set_max_tuning_duration", "set_max_tuning_iterations"),
            *("set_numerical_check_tolerances", "set_rotating_buffer_size", "tune_gemm_in_file"),
        ),
        "tuning",
    ),
}
# Classes raise when an object is made, and when a name is looked up in them, such as GreenContext.create.
CLASSES: dict[str, dict[str, str]] = {
    "": {
        "GreenContext": "cores",
        "cudaStatus": "runtime",
    },
    "gds": {"GdsFile": "files"},
    "green_contexts": {"GreenContext": "cores"},
    "sparse": dict.fromkeys(
        (
            *("BFloat16Tensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor"),
            *("HalfTensor", "IntTensor", "LongTensor", "ShortTensor"),
        ),
        "sparse",
    ),
}


def reason(module: str, name: str) -> str | None:
    """Returns the key of the reason for which a name is refused, or None for a name that is not refused."""
    return FUNCTIONS.get(module, {}).get(name) or CLASSES.get(module, {}).get(name)


def install(vdev: ModuleType) -> None:
    """Puts every refusal into torch.vdev and its modules. A name that the module has is left alone."""
    for refused, make in ((FUNCTIONS, refusal), (CLASSES, refused_class)):
        for module, names in refused.items():
            owner = f"torch.vdev.{module}" if module else "torch.vdev"
            target = _module(vdev, module)
            for name, key in names.items():
                if not hasattr(target, name):
                    setattr(target, name, make(name, REASONS[key], owner))


def _module(vdev: ModuleType, name: str) -> ModuleType:
    """Returns the module of torch.vdev, which is made if everything in it is refused."""
    if not name:
        return vdev
    if not hasattr(vdev, name):
        setattr(vdev, name, ModuleType(f"torch.vdev.{name}", "Everything here needs a GPU (docs/device.md)."))
    return getattr(vdev, name)
