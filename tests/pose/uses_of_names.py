"""A use of each name of torch.cuda that answers. It is tried in pose, and on torch.vdev under the same name.

In an expression ``cuda`` is torch.cuda or torch.vdev, and x and y are tensors of the cards 0 and 1. A
use closes what it opens, because other tests run in the same process.
"""

from types import ModuleType
from typing import Any

import torch

# Names that are called without arguments.
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
    "nccl": "version",
    "nvtx": "range_pop",
    "profiler": "profile start stop",
    "tunable": "is_enabled record_untuned_is_enabled tuning_is_enabled",
}
# Storages, tensor types, modules and other values, of which nothing is called.
VALUES = {
    "": """BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage
        CudaError DeferredCudaCallError DoubleStorage FloatStorage HalfStorage IntStorage LongStorage
        ShortStorage amp graphs has_half has_magma jiterator memory nccl nvtx profiler random sparse streams
        tunable""",
}
TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_RAW = "cuda.caching_allocator_alloc(8)"
# Names that take arguments.
EXPRESSIONS: dict[str, dict[str, str]] = {
    "": {
        **{f"{kind}Tensor": f"cuda.{kind}Tensor([1])" for kind in TYPES},
        "ExternalStream": "cuda.ExternalStream(cuda.Stream().native_handle)",
        "StreamContext": "entered(cuda.StreamContext(cuda.current_stream()))",
        "caching_allocator_alloc": f"cuda.caching_allocator_delete({_RAW})",
        "caching_allocator_delete": f"cuda.caching_allocator_delete({_RAW})",
        "can_device_access_peer": "cuda.can_device_access_peer(0, 1)",
        "check_error": "cuda.check_error(0)",
        "cudaStatus": "cuda.cudaStatus.SUCCESS",
        "default_generators": "cuda.default_generators[1].initial_seed()",
        "device": "cuda.device(1)",
        "device_of": "cuda.device_of(y)",
        "get_stream_from_external": "cuda.get_stream_from_external(cuda.Stream().native_handle, 0)",
        "graph": "cuda.graph(Graph())",
        "make_graphed_callables": "cuda.make_graphed_callables(torch.nn.Linear(2, 2).to(x.device), (x,))",
        "manual_seed": "cuda.manual_seed(0)",
        "manual_seed_all": "cuda.manual_seed_all(0)",
        "set_device": "cuda.set_device(0)",
        "set_per_process_memory_fraction": "cuda.set_per_process_memory_fraction(1.0)",
        "set_rng_state": "cuda.set_rng_state(cuda.get_rng_state())",
        "set_rng_state_all": "cuda.set_rng_state_all(cuda.get_rng_state_all())",
        "set_stream": "cuda.set_stream(cuda.current_stream())",
        "set_sync_debug_mode": "cuda.set_sync_debug_mode(0)",
        "stream": "cuda.stream(cuda.current_stream())",
        "use_mem_pool": "cuda.use_mem_pool(cuda.MemPool())(len)('in the pool')",
    },
    "amp": {"custom_bwd": "cuda.amp.custom_bwd(len)", "custom_fwd": "cuda.amp.custom_fwd(len)"},
    "nvtx": {
        "mark": "cuda.nvtx.mark('moment')",
        "range": "cuda.nvtx.range('part')(len)('in the range')",
        "range_end": "cuda.nvtx.range_end(cuda.nvtx.range_start('part'))",
        "range_push": "cuda.nvtx.range_push('part'), cuda.nvtx.range_pop()",
        "range_start": "cuda.nvtx.range_end(cuda.nvtx.range_start('part'))",
    },
    "comm": {
        "broadcast": "cuda.comm.broadcast(x, [0, 1])",
        "broadcast_coalesced": "cuda.comm.broadcast_coalesced([x], [0, 1])",
        "gather": "cuda.comm.gather([x, y])",
        "reduce_add": "cuda.comm.reduce_add([x, y])",
        "reduce_add_coalesced": "cuda.comm.reduce_add_coalesced([[x], [y]])",
        "scatter": "cuda.comm.scatter(x, [0, 1])",
    },
    "nccl": {
        "all_gather": "cuda.nccl.all_gather([x, y], [x.repeat(2), y.repeat(2)])",
        "all_reduce": "cuda.nccl.all_reduce([x, y])",
        "broadcast": "cuda.nccl.broadcast([x, y])",
        "is_available": "cuda.nccl.is_available([x, y])",
        "reduce": "cuda.nccl.reduce([x, y])",
        "reduce_scatter": "cuda.nccl.reduce_scatter([x, y], [x[:1], y[:1]])",
    },
    "sparse": {f"{kind}Tensor": f"cuda.sparse.{kind}Tensor(2, 3)" for kind in TYPES if kind != "Bool"},
}
# Names that answer for one argument and refuse another: the argument that they refuse, and the key of the
# reason in device.md.
REFUSED_WITH: dict[str, dict[str, tuple[bool, str]]] = {
    "": {"caching_allocator_enable": (False, "allocator")},
    "tunable": dict.fromkeys(("enable", "record_untuned_enable", "tuning_enable"), (True, "tuning")),
}


def listed(module: str) -> list[str]:
    """Returns every name of a module that this file has."""
    in_words = f"{CALLED.get(module, '')} {VALUES.get(module, '')}".split()
    in_parts = {**REFUSED_WITH.get(module, {}), **EXPRESSIONS.get(module, {})}
    return [*in_words, *(name for name in in_parts if name not in in_words)]


def entered(context: Any) -> Any:
    with context:
        return context


def use(cuda: ModuleType, module: str, name: str, graph: type) -> Any:
    """Uses a name as this file says, in torch.cuda or torch.vdev. Its class of graphs is ``graph``."""
    owner: Any = getattr(cuda, module) if module else cuda
    if name in REFUSED_WITH.get(module, {}):
        refused, _ = REFUSED_WITH[module][name]
        return getattr(owner, name)(not refused)
    if expression := EXPRESSIONS.get(module, {}).get(name):
        cards = [torch.device(cuda.current_stream(index).device) for index in (0, 1)]
        x, y = (torch.ones(2, device=card) for card in cards)
        names = {"cuda": cuda, "torch": torch, "x": x, "y": y, "Graph": graph, "entered": entered}
        return eval(expression, names)
    found = graph if name == "CUDAGraph" else getattr(owner, name)
    return found() if name in CALLED.get(module, "").split() else found
