"""Everything that the conversion writes exists in the installed torch, and takes the same arguments."""

import contextlib
import importlib
import inspect

import pytest
import torch
import torch.distributed.device_mesh
import torch.distributed.tensor

from vccl.convert import advice
from vccl.convert.targets import ALSO_USED, DEVICE_PARAMETERS, INT_DEVICE, TARGETS, TYPE_PARAMETERS


def found(path: str) -> object:
    """Returns what stands at a path behind `torch.`; `get_device_module()` in it is called."""
    value: object = torch
    for part in path.split("."):
        value = getattr(value, part.removesuffix("()"))
        value = value() if part.endswith("()") else value
    return value


@pytest.mark.parametrize("path", sorted({target.path for target in TARGETS.values()} | set(ALSO_USED)))
def test_what_is_written_exists(path):
    assert callable(found(path)) or inspect.isclass(found(path))


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_replaced_exists_for_cuda(name):
    """memory_cached and its like have been taken out of later versions, and scripts still use them."""
    if name not in ("memory_cached", "max_memory_cached", "reset_max_memory_cached"):
        found(f"cuda.{name}")


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.path.startswith("acc")])
def test_the_accelerator_takes_the_arguments_of_cuda(name):
    """By position, as many at most; only the parameter whose keyword is taken away is by position alone."""
    before = inspect.signature(found(f"cuda.{name}")).parameters.values()
    after = list(inspect.signature(found(TARGETS[name].path)).parameters.values())
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert old.name in TARGETS[name].no_keyword or (old.name, old.kind) == (new.name, new.kind)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if "module()" in target.path])
def test_the_module_of_the_device_takes_the_arguments_of_cuda(name):
    before = inspect.signature(found(f"cuda.{name}")).parameters
    after = inspect.signature(found(TARGETS[name].path)).parameters
    assert list(before) == list(after)


def test_streams_events_and_amp_take_the_arguments():
    index = torch.accelerator.current_device_index()
    assert torch.Stream(index, priority=-1).device == torch.Stream(device=index).device
    torch.Event(enable_timing=True, blocking=False, interprocess=False)
    parameters = list(inspect.signature(torch.amp.autocast).parameters)
    assert parameters[0] == "device_type" and {"enabled", "dtype", "cache_enabled"} <= set(parameters)
    before = list(inspect.signature(torch.cuda.amp.GradScaler).parameters)
    assert list(inspect.signature(torch.amp.GradScaler).parameters) == ["device", *before]
    with found(INT_DEVICE.path)(index):
        pass


@pytest.mark.parametrize("name", {**DEVICE_PARAMETERS, **TYPE_PARAMETERS})
def test_functions_have_the_parameters_that_name_a_device(name):
    position, keyword = {**DEVICE_PARAMETERS, **TYPE_PARAMETERS}[name]
    function = found(name.removeprefix("torch."))
    try:
        parameters = list(inspect.signature(function).parameters)
    except ValueError:  # a builtin has no signature
        return
    if "args" not in parameters:
        assert parameters[position] == keyword


def test_what_advice_names_exists():
    """A mistyped name would never be found in a script. A build without CUDA lacks some."""
    for name in set(advice.NAMES) - {"torch.version.cuda", "torch.distributed.ProcessGroupNCCL"}:
        for module in (name, name.rpartition(".")[0]):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)
        assert found(name.removeprefix("torch.")) is not None or name.endswith("CUDA_HOME")
