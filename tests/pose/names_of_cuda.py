"""Compares the public names of torch.cuda with the lists of those that work and those that are refused."""

import importlib
import warnings

import torch

from vccl._no_gpu import NoGpuError

# By module of torch.cuda: an expression that has to raise NoGpuError, for each name that needs a GPU.
REFUSED = {
    "": {
        **{name: f"cuda.{name}()" for name in ("clock_rate",)},
        **{name: f"cuda.{name}()" for name in ("memory_usage", "power_draw", "temperature", "utilization")},
        **{name: f"cuda.{name}()" for name in ("current_blas_handle", "current_solver_handle")},
        "CUDAPluggableAllocator": "cuda.memory.change_current_allocator(cuda.memory._CUDAAllocator(None))",
        "GreenContext": "cuda.GreenContext.create(num_sms=1)",
        "change_current_allocator": "cuda.change_current_allocator(cuda.memory._CUDAAllocator(None))",
    },
    "tunable": {
        **{f"get_{name}": f"cuda.tunable.get_{name}()" for name in ("filename", "results", "validators")},
        **{
            f"get_{name}": f"cuda.tunable.get_{name}()"
            for name in ("max_tuning_duration", "max_tuning_iterations", "rotating_buffer_size")
        },
        **{
            f"set_{name}": f"cuda.tunable.set_{name}(1)"
            for name in ("max_tuning_duration", "max_tuning_iterations", "rotating_buffer_size")
        },
        **{
            name: f"cuda.tunable.{name}(True)"
            for name in ("enable", "tuning_enable", "record_untuned_enable")
        },
        "set_filename": "cuda.tunable.set_filename('x')",
        "set_numerical_check_tolerances": "cuda.tunable.set_numerical_check_tolerances(True)",
        "read_file": "cuda.tunable.read_file('x')",
    },
    "gds": {
        "gds_register_buffer": "cuda.gds.gds_register_buffer(torch.ones(1).untyped_storage())",
        "gds_deregister_buffer": "cuda.gds.gds_deregister_buffer(torch.ones(1).untyped_storage())",
        "GdsFile": "cuda.gds.GdsFile(torch.__file__, 0)",
    },
}

# Names that are called without arguments, and answer.
CALLED = {
    "": """CUDAGraph Event MemPool Stream caching_allocator_enable cudart current_device current_stream
        default_stream device_count device_memory_used
        empty_cache get_allocator_backend get_arch_list get_device_capability get_device_name
        get_device_properties get_gencode_flags get_per_process_memory_fraction get_rng_state
        get_rng_state_all
        get_sync_debug_mode graph_pool_handle host_memory_stats host_memory_stats_as_nested_dict init
        initial_seed ipc_collect list_gpu_processes
        is_available is_bf16_supported is_current_stream_capturing is_initialized is_tf32_supported
        max_memory_allocated max_memory_cached max_memory_reserved mem_get_info memory_allocated memory_cached
        memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary
        reset_accumulated_host_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated
        reset_max_memory_cached reset_peak_host_memory_stats reset_peak_memory_stats seed seed_all
        synchronize""",
    "amp": "GradScaler amp_definitely_not_available autocast",
    "nvtx": "range_pop",
    "profiler": "start stop",
    "tunable": "is_enabled record_untuned_is_enabled tuning_is_enabled",
}
# Names that take arguments, classes and modules. habits_*.py use what is usual of them.
LISTED = {
    "": """BFloat16Storage BFloat16Tensor BoolStorage BoolTensor ByteStorage ByteTensor CharStorage
        CharTensor ComplexDoubleStorage ComplexFloatStorage CudaError DeferredCudaCallError DoubleStorage
        DoubleTensor ExternalStream FloatStorage FloatTensor HalfStorage HalfTensor IntStorage IntTensor
        LongStorage LongTensor ShortStorage ShortTensor StreamContext amp caching_allocator_alloc
        caching_allocator_delete caching_allocator_disabled can_device_access_peer check_error cudaStatus
        default_generators device device_of get_stream_from_external graph graphs has_half has_magma
        jiterator make_graphed_callables manual_seed manual_seed_all memory nccl nvtx profiler random
        set_device set_per_process_memory_fraction set_rng_state set_rng_state_all set_stream
        set_sync_debug_mode sparse stream streams tunable use_mem_pool""",
    "amp": "custom_bwd custom_fwd",
    "nvtx": "mark range range_end range_push range_start",
    "comm": "broadcast broadcast_coalesced gather reduce_add reduce_add_coalesced scatter",
    "profiler": "profile",
    "nccl": "all_gather all_reduce broadcast reduce reduce_scatter",
    # They say that tuning is not enabled, as on a GPU where it is not.
    "tunable": "mgpu_tune_gemm_in_file tune_gemm_in_file",
}
# Their names are torch.cuda's own, too.
REPEATED = ("memory", "random", "graphs", "green_contexts")
MODULES = (*REPEATED, "", "amp", "comm", "gds", "jiterator", "nccl", "nvtx", "profiler", "tunable")


def module_of(name):
    return importlib.import_module(f"torch.cuda.{name}" if name else "torch.cuda")


def probe_every_public_name_is_listed_once():
    for module in MODULES:
        public = set(module_of(module).__all__)
        if module in REPEATED:
            assert public <= set(torch.cuda.__all__), (module, public - set(torch.cuda.__all__))
            continue
        called, listed = CALLED.get(module, "").split(), LISTED.get(module, "").split()
        known = [*REFUSED.get(module, ()), *called, *listed]
        assert len(set(known)) == len(known)
        assert public == set(known), (module, "not listed", public - set(known), "gone", set(known) - public)


def probe_what_needs_a_gpu_is_refused():
    for module, expressions in REFUSED.items():
        module_of(module)
        for name, expression in expressions.items():
            try:
                eval(expression, {"cuda": torch.cuda, "torch": torch})
            except NoGpuError as error:
                assert "needs a GPU" in str(error)
            else:
                raise AssertionError(f"{module}.{name} is not refused")


def probe_the_others_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for module, called in CALLED.items():
            for name in called.split():
                getattr(module_of(module), name)()
        for module, listed in LISTED.items():
            assert all(hasattr(module_of(module), name) for name in listed.split()), module
