"""The names that only a GPU or its libraries can serve. Each raises an error that says so."""

import sys
from typing import Any

import torch

from vccl._cards.no_gpu import CORES, TUNING, refusal

_GRAPHS = "Use torch.cuda.graph: the cards have no checkpoints of the pools of graphs."
_POOLS = "Use torch.cuda.use_mem_pool(), which is for the calling thread."
_ALLOCATORS = (
    "The allocator of the cards cannot be replaced. VDEV_MEMORY and set_per_process_memory_fraction limit it."
)
_KERNELS = "Write the operator with PyTorch's operators."
_NCCL = "Leave out the communicators, or use torch.distributed with the backend nccl."
_FILES = "Load the file into a CPU tensor, and copy it to the card."
_SENSORS = "Use torch.cuda.memory_stats() for what the program itself uses."

# The names of torch._C that torch's Python mentions, with what to do instead.
NAMES: dict[str, str] = {
    "_cuda_beginAllocateCurrentStreamToPool": _POOLS,
    "_cuda_beginAllocateToPool": _POOLS,
    "_cuda_changeCurrentAllocator": _ALLOCATORS,
    "_cuda_checkPoolLiveAllocations": _GRAPHS,
    "_cuda_cudaHostAllocator": "Use torch.empty(..., pin_memory=True).",
    "_cuda_customAllocator": _ALLOCATORS,
    "_cuda_getAllocator": _ALLOCATORS,
    "_cuda_getCheckpointState": _GRAPHS,
    "_cuda_getCurrentBlasHandle": _KERNELS,
    "_cuda_getCurrentSolverHandle": _KERNELS,
    "_cuda_getHipblasltVersion": _KERNELS,
    "_cuda_jiterator_compile_and_launch_kernel": _KERNELS,
    "_cuda_setCheckpointPoolState": _GRAPHS,
    "_cuda_tunableop_get_filename": TUNING,
    "_cuda_tunableop_get_max_tuning_duration": TUNING,
    "_cuda_tunableop_get_max_tuning_iterations": TUNING,
    "_cuda_tunableop_get_results": TUNING,
    "_cuda_tunableop_get_rotating_buffer_size": TUNING,
    "_cuda_tunableop_get_validators": TUNING,
    "_cuda_tunableop_read_file": TUNING,
    "_cuda_tunableop_set_filename": TUNING,
    "_cuda_tunableop_set_max_tuning_duration": TUNING,
    "_cuda_tunableop_set_max_tuning_iterations": TUNING,
    "_cuda_tunableop_set_numerical_check_tolerances": TUNING,
    "_cuda_tunableop_set_rotating_buffer_size": TUNING,
    "_gds_deregister_buffer": _FILES,
    "_gds_deregister_handle": _FILES,
    "_gds_load_storage": _FILES,
    "_gds_register_buffer": _FILES,
    "_gds_register_handle": _FILES,
    "_gds_save_storage": _FILES,
    "_nccl_init_rank": _NCCL,
    "_nccl_unique_id": _NCCL,
}
# Classes of torch._C that are empty or missing in a build without CUDA.
CLASSES: dict[str, str] = {
    "_cuda_CUDAAllocator_AllocatorState": _GRAPHS,
}
# Functions of torch.cuda that ask the GPU's driver, past torch._C.
SENSORS = (
    "clock_rate",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
)


def refuse_array_interface(tensor: torch.Tensor) -> Any:
    """Stands for ``Tensor.__cuda_array_interface__``, by which libraries for GPUs take a tensor's memory.

    Raises:
        AttributeError: always, as torch does for what it cannot offer, so that hasattr() is False.
    """
    if tensor.device.type != "cuda":
        return _array_interface.__get__(tensor)
    # Not a NoGpuError: the interface says that an object without it raises AttributeError.
    raise AttributeError(
        "Tensor.__cuda_array_interface__ needs a GPU, and the cuda cards are virtual: their memory is the "
        "host's. Use tensor.cpu().numpy(), or DLPack."
    )


_array_interface: Any = torch.Tensor.__cuda_array_interface__


def install() -> None:
    """Puts a refusal in the place of every name, also where torch's modules have taken an empty type."""
    cuda: Any = torch.cuda
    memory: Any = sys.modules["torch.cuda.memory"]
    modules: list[Any] = [memory]
    for name, advice in NAMES.items():
        refuse = refusal(name, advice, "torch._C")
        setattr(torch._C, name, refuse)
        for module in modules:
            if name in vars(module):
                setattr(module, name, refuse)
    for name, advice in CLASSES.items():
        empty: Any = getattr(torch._C, name, None) or type(name, (), {})
        empty.__new__ = refusal(name, advice, "torch._C")
        empty.__init__ = refusal(name, advice, "torch._C")
        setattr(torch._C, name, empty)
    for name in SENSORS:
        setattr(cuda, name, refusal(name, _SENSORS, "torch.cuda"))
    for name in ("create", "max_workqueue_concurrency"):
        setattr(cuda.GreenContext, name, refusal(name, CORES, "torch.cuda.GreenContext"))
    tensor: Any = torch.Tensor
    tensor.__cuda_array_interface__ = property(refuse_array_interface)
