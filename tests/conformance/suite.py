"""Loads distributed_test.py, PyTorch's own suite, from the installed torch, for one backend and device."""

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import rewrite

NAME = "torch.testing._internal.distributed.distributed_test"


def load(backend: str, device: str, world_size: int, init_method: str) -> types.ModuleType:
    """The suite's module. Sets the environment that it reads; for one backend, device and size per process.

    Args:
        backend: "vccl", or another that the suite then meets as it is.
        device: "cpu": as it stands, "vdev": with vdev wherever it says CUDA, or "cuda": in a process whose
            cards pose as CUDA, with the backend nccl.
        init_method: a "file://" address; tests that make the default group anew use it.
    """
    suites_name = "nccl" if device == "cuda" else backend
    os.environ.update(BACKEND=suites_name, WORLD_SIZE=str(world_size), INIT_METHOD=init_method)
    spec = importlib.util.find_spec(NAME)
    if backend != "vccl":
        return importlib.import_module(NAME)
    from vccl._C import ProcessGroupVccl

    _prepare_helpers(device)
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(rewrite.selectors(device))
    module.__dict__[rewrite.PROCESS_GROUP] = ProcessGroupVccl
    sys.modules[NAME] = module
    with open(spec.origin, encoding="utf-8") as file:
        tree = rewrite.rewrite(file.read(), spec.origin, device)
    exec(compile(tree, spec.origin, "exec"), module.__dict__)
    _expect_profiles(module)
    return module


def _prepare_helpers(device: str) -> None:
    """What the suite imports from its neighbour: must know the backend and the device before it is loaded."""
    from torch.testing._internal import common_distributed

    if device != "cuda":
        for backends in common_distributed.DistTestCases.backend_feature.values():
            backends.add("vccl")
    common_distributed.skip_if_small_worldsize = skip_if_small_worldsize
    if device == "vdev":
        for replacement in (skip_if_no_gpu, skip_if_lt_x_gpu, init_multigpu_helper):
            setattr(common_distributed, replacement.__name__, replacement)


def _cards_or_skip(count: int) -> None:
    import torch
    from torch.testing._internal.common_distributed import TEST_SKIPS

    if torch.vdev.device_count() < count:
        sys.exit(TEST_SKIPS[f"multi-gpu-{count}"].exit_code)


def skip_if_small_worldsize(test: Callable) -> Callable:
    """Upstream's asks for 8 ranks, to keep tests of a group of the ranks 1 and 2 from its machines; 3 do."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from torch.testing._internal.common_distributed import TEST_SKIPS

        if int(os.environ["WORLD_SIZE"]) < 3:
            sys.exit(TEST_SKIPS["small_worldsize"].exit_code)
        return test(*args, **kwargs)

    return wrapper


def skip_if_no_gpu(test: Callable) -> Callable:
    """Upstream's, with cards for its GPUs: a card for each rank."""
    return skip_if_lt_x_gpu(int(os.environ["WORLD_SIZE"]))(test)


def skip_if_lt_x_gpu(count: int, *, allow_cpu: bool = False) -> Callable:
    """Upstream's, with cards for its GPUs."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            _cards_or_skip(count)
            return test(*args, **kwargs)

        return wrapper

    return decorate


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Upstream's: the cards of each rank, one each."""
    return {rank: [rank] for rank in range(world_size)}


def _expect_profiles(module: types.ModuleType) -> None:
    """The suite checks the profiler's events ("vccl:all_reduce") for the backends in these lists only."""
    for backends in (
        module.PROFILING_SUPPORTED_BACKENDS,
        module.CUDA_PROFILING_SUPPORTED_BACKENDS,
        module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        backends.append("vccl")
