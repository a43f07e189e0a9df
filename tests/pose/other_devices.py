"""Which names of torch.cuda the devices torch.musa and torch.npu have, read from their sources."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class OtherDevice:
    """By module of torch.cuda ("" is torch.cuda itself): the names that the device has, too."""

    name: str
    source: str
    same: dict[str, str]
    # Names of torch.cuda that the device has under another name.
    renamed: dict[str, dict[str, str]]

    def counterpart(self, module: str, name: str) -> str:
        """Returns the cell of a table: "yes", the device's own name for it, or "-"."""
        if other := self.renamed.get(module, {}).get(name):
            return f"`{other}`"
        return "yes" if name in self.same.get(module, "").split() else "-"


_BOTH = """BFloat16Storage BoolStorage ByteStorage CharStorage DoubleStorage Event ExternalStream
    FloatStorage HalfStorage IntStorage LongStorage MemPool ShortStorage Stream StreamContext amp
    can_device_access_peer change_current_allocator current_blas_handle current_device
    current_stream default_generators default_stream device device_count device_of empty_cache
    get_allocator_backend get_device_capability get_device_name get_device_properties get_rng_state
    get_rng_state_all graph graph_pool_handle init initial_seed ipc_collect is_available
    is_bf16_supported is_current_stream_capturing is_initialized make_graphed_callables manual_seed
    manual_seed_all max_memory_allocated max_memory_reserved mem_get_info memory memory_allocated
    memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary
    reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached
    reset_peak_memory_stats seed seed_all set_device set_per_process_memory_fraction set_rng_state
    set_rng_state_all set_stream stream synchronize use_mem_pool"""
_AMP = "GradScaler autocast custom_bwd custom_fwd"

MUSA = OtherDevice(
    "torch.musa",
    "[MooreThreads/torch_musa](https://github.com/MooreThreads/torch_musa),\n"
    "  version 2.7.1 of 2026-01-19 (8b583b3)",
    {"": _BOTH + " check_error get_arch_list is_tf32_supported", "amp": _AMP},
    {
        "": {
            "CUDAGraph": "MUSAGraph",
            "CUDAPluggableAllocator": "MUSAPluggableAllocator",
            "CudaError": "MusaError",
            "cudart": "musart",
            "nccl": "mccl",
        },
        "amp": {"amp_definitely_not_available": "torch.musa.amp_definitely_not_available"},
        "nccl": {"version": "mccl.version"},
    },
)
NPU = OtherDevice(
    "torch.npu",
    "[Ascend/pytorch](https://github.com/Ascend/pytorch), the main branch of 2026-08-21 (9e73e70)",
    {
        "": _BOTH
        + """ BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor
        IntTensor LongTensor ShortTensor caching_allocator_alloc caching_allocator_delete
        get_per_process_memory_fraction get_sync_debug_mode graphs host_memory_stats
        host_memory_stats_as_nested_dict max_memory_cached memory_cached random
        reset_accumulated_host_memory_stats reset_peak_host_memory_stats set_sync_debug_mode streams
        utilization""",
        "amp": _AMP,
    },
    {
        "": {
            "CUDAGraph": "NPUGraph",
            "CUDAPluggableAllocator": "NPUPluggableAllocator",
            "cudart": "npurt",
            "nvtx": "mstx",
        },
        "nvtx": {
            name: f"mstx.{name}" for name in ("mark", "range_end", "range_pop", "range_push", "range_start")
        },
    },
)
