"""The accelerator that tells DeepSpeed about the cards. vccl.integrations.deepspeed registers it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from vccl import vdev
from vccl._cards.no_gpu import NoGpuError

# The builders of the extensions that work on the host's memory.
_HOST_BUILDERS = ("AsyncIOBuilder", "CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder")


@functools.cache
def _no_kernels_builder() -> Any:
    """Returns the builder for the extensions of CUDA kernels, which cards cannot run."""
    from deepspeed.ops.op_builder import cpu  # DeepSpeed imports it after the accelerator

    class NoKernelsBuilder(cpu.NotImplementedBuilder):
        def is_compatible(self, verbose: bool = False) -> bool:
            return False

        def load(self, verbose: bool = True) -> None:
            raise NoGpuError(
                "An extension of DeepSpeed with kernels of its own",
                'Ask for torch\'s optimizer ("torch_adam": true) or for one on the CPU (offload_optimizer).',
            )

    return NoKernelsBuilder


def _tensor_type(dtype: torch.dtype) -> property:
    """Returns the property for a legacy tensor type: a function that makes tensors on a card."""
    return property(lambda self: functools.partial(torch.tensor, dtype=dtype, device="vdev"))


class VdevAccelerator(DeepSpeedAccelerator):
    """Tells DeepSpeed about the cards. They are asynchronous, as GPUs are."""

    def __init__(self) -> None:
        super().__init__()
        self._name = "vdev"
        self._communication_backend_name = "vccl"
        self._compile_backend = "inductor"

    def is_synchronized_device(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return False

    def resolves_data_dependency(self) -> bool:
        return False

    def handles_memory_backpressure(self) -> bool:
        return False

    # Devices.

    def is_available(self) -> bool:
        return vdev.is_available()

    def device_name(self, device_index: int | None = None) -> str:
        return "vdev" if device_index is None else f"vdev:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return vdev.device(device_index)

    def set_device(self, device_index: int) -> None:
        vdev.set_device(device_index)

    def current_device(self) -> int:
        return vdev.current_device()

    def current_device_name(self) -> str:
        return f"vdev:{vdev.current_device()}"

    def device_count(self) -> int:
        return vdev.device_count()

    def synchronize(self, device_index: int | None = None) -> None:
        vdev.synchronize(device_index)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "vdev"

    def lazy_call(self, callback: Callable[[], object]) -> None:
        vdev._lazy_call(callback)

    # Random numbers.

    def random(self) -> Any:
        return torch.random

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        vdev.set_rng_state(new_state, device_index)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return vdev.get_rng_state(device_index)

    def manual_seed(self, seed: int) -> None:
        vdev.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        vdev.manual_seed_all(seed)

    def initial_seed(self) -> int:
        return vdev.initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        return vdev.default_generators[device_index]

    # Streams.

    @property
    def Stream(self) -> Any:
        return vdev.Stream

    @property
    def Event(self) -> Any:
        return vdev.Event

    def stream(self, stream: Any) -> Any:
        return vdev.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return vdev.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        return vdev.default_stream(device_index)

    # Memory. torch.cuda's older names say "cached" for "reserved".

    def empty_cache(self) -> None:
        vdev.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return vdev.memory_allocated(device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return vdev.max_memory_allocated(device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        return vdev.memory_reserved(device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return vdev.max_memory_reserved(device_index)

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return vdev.memory_stats(device_index)

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        vdev.reset_peak_memory_stats(device_index)

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved
    reset_max_memory_allocated = reset_peak_memory_stats
    reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        return vdev.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return vdev.mem_get_info(device_index)[0]

    # Types.

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    BFloat16Tensor = _tensor_type(torch.bfloat16)
    ByteTensor = _tensor_type(torch.uint8)
    DoubleTensor = _tensor_type(torch.float64)
    FloatTensor = _tensor_type(torch.float32)
    HalfTensor = _tensor_type(torch.float16)
    IntTensor = _tensor_type(torch.int32)
    LongTensor = _tensor_type(torch.int64)

    # Graphs, which only a GPU has.

    def create_graph(self) -> None:
        raise NoGpuError("A graph of kernels", "Set enable_cuda_graph to false.")

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> None:
        self.create_graph()

    def replay_graph(self, graph: Any) -> None:
        self.create_graph()

    # Communication, compilers and tools.

    def communication_backend_name(self) -> str:
        return "vccl"

    def is_triton_supported(self) -> bool:
        return False

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(f"torch.compile has no backend {backend!r}. It has: {', '.join(known)}.")
        self._compile_backend = backend

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Does nothing: only tools for GPUs record ranges."""

    def range_pop(self, domain: str | None = None) -> None:
        """Does nothing, as range_push."""

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder.cpu"

    def get_op_builder(self, class_name: str) -> Any:
        from deepspeed.ops.op_builder import cpu

        return getattr(cpu, class_name) if class_name in _HOST_BUILDERS else _no_kernels_builder()

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    # What a launcher passes on to ranks.

    def export_envs(self) -> list[str]:
        return ["VDEV", "VCCL"]

    def visible_devices_envs(self) -> list[str]:
        return ["VDEV_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        current_env["VDEV_VISIBLE_DEVICES"] = ",".join(map(str, local_accelerator_ids))
