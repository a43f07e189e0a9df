"""Compares the public names of torch.cuda with the lists of those that work and those that are refused.

The names that work are in uses_of_names.py.
"""

import importlib
import warnings

import torch
from uses_of_names import REFUSED_WITH, TYPES, listed, use

from vccl._cards.no_gpu import NoGpuError

_CODE = "template <typename T> T same(T x) { return x; }"
# By module of torch.cuda: an expression that has to raise an error, for each name that is refused. The error
# is NoGpuError if the name needs a GPU, and NotImplementedError if the cards' allocator forbids it.
REFUSED = {
    "": {
        **{name: f"cuda.{name}()" for name in ("clock_rate",)},
        **{name: f"cuda.{name}()" for name in ("memory_usage", "power_draw", "temperature", "utilization")},
        **{name: f"cuda.{name}()" for name in ("current_blas_handle", "current_solver_handle")},
        "CUDAPluggableAllocator": "cuda.memory.change_current_allocator(cuda.memory._CUDAAllocator(None))",
        "GreenContext": "cuda.GreenContext.create(num_sms=1)",
        "caching_allocator_disabled": "cuda.caching_allocator_disabled().__enter__()",
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
        "set_filename": "cuda.tunable.set_filename('x')",
        "set_numerical_check_tolerances": "cuda.tunable.set_numerical_check_tolerances(True)",
        "mgpu_tune_gemm_in_file": "cuda.tunable.mgpu_tune_gemm_in_file('x', 1)",
        "read_file": "cuda.tunable.read_file('x')",
        "tune_gemm_in_file": "(cuda.tunable.enable(), cuda.tunable.tune_gemm_in_file('x'))",
    },
    "jiterator": {
        "_create_jit_fn": f"cuda.jiterator._create_jit_fn('{_CODE}')(torch.ones(1, device='cuda'))",
        "_create_multi_output_jit_fn": f"cuda.jiterator._create_multi_output_jit_fn('{_CODE}', 1)"
        "(torch.ones(1, device='cuda'))",
    },
    "nccl": {"init_rank": "cuda.nccl.init_rank(1, b'', 0)", "unique_id": "cuda.nccl.unique_id()"},
    "gds": {
        "gds_register_buffer": "cuda.gds.gds_register_buffer(torch.ones(1).untyped_storage())",
        "gds_deregister_buffer": "cuda.gds.gds_deregister_buffer(torch.ones(1).untyped_storage())",
        "GdsFile": "cuda.gds.GdsFile(torch.__file__, 0)",
    },
}

# Their names are torch.cuda's own, too.
REPEATED = ("memory", "random", "graphs", "green_contexts")
MODULES = (*REPEATED, "", "amp", "comm", "gds", "jiterator", "nccl", "nvtx", "profiler", "sparse", "tunable")
# Names that are not in __all__, but documented by torch.
NOT_IN_ALL = {
    "jiterator": ("_create_jit_fn", "_create_multi_output_jit_fn"),
    "nccl": ("init_rank", "is_available", "unique_id", "version"),
    "sparse": tuple(f"{kind}Tensor" for kind in TYPES if kind != "Bool"),
}


def module_of(name):
    return importlib.import_module(f"torch.cuda.{name}" if name else "torch.cuda")


def probe_every_public_name_is_listed_once():
    for module in MODULES:
        public = {*getattr(module_of(module), "__all__", ()), *NOT_IN_ALL.get(module, ())}
        if module in REPEATED:
            assert public <= set(torch.cuda.__all__), (module, public - set(torch.cuda.__all__))
            continue
        known = [*REFUSED.get(module, ()), *listed(module)]
        assert len(set(known)) == len(known)
        assert public == set(known), (module, "not listed", public - set(known), "gone", set(known) - public)


def refused_with(module):
    """Returns the expressions that names refuse which also answer, by name."""
    owner = f"cuda.{module}" if module else "cuda"
    return {name: f"{owner}.{name}({value})" for name, (value, _) in REFUSED_WITH.get(module, {}).items()}


def probe_what_the_cards_lack_is_refused():
    for module in MODULES:
        module_of(module)
        for name, expression in {**REFUSED.get(module, {}), **refused_with(module)}.items():
            try:
                eval(expression, {"cuda": torch.cuda, "torch": torch})
            except NoGpuError as error:
                assert "needs a GPU" in str(error)
            except NotImplementedError as error:
                assert "allocator" in str(error) and "allocator" in name, name
            else:
                raise AssertionError(f"{module}.{name} is not refused")


def probe_the_others_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for module in MODULES:
            module_of(module)
            for name in listed(module):
                try:
                    use(torch.cuda, module, name, torch.cuda.CUDAGraph)
                except Exception as error:
                    raise AssertionError(f"{module}.{name} does not answer") from error
