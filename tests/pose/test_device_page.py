"""docs/device.md, and whether torch.vdev has and refuses what the page says."""

import contextlib
import inspect
import pydoc
import warnings

import pytest
import torch
from device_page import (
    OWN,
    PAGE,
    REFUSED_AS_NOT_IMPLEMENTED,
    RENAMED,
    REPEATED,
    names,
    of_vdev,
    page,
    status_on_vdev,
)
from other_devices import MUSA, NPU
from uses_of_names import REFUSED_WITH, use

from vccl._cards.no_gpu import NoGpuError
from vccl.vdev import refused

MODULES = ("", *OWN)
REFUSED = [
    (module, name)
    for kind in (refused.FUNCTIONS, refused.CLASSES)
    for module, listed in kind.items()
    for name in listed
]


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run python tests/pose/device_page.py"


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_there(module):
    absent = {name for name in names(module) if not hasattr(of_vdev(module), RENAMED.get(name, name))}
    assert not absent


@pytest.mark.parametrize(("module", "name"), REFUSED)
def test_a_refused_name_raises(module, name):
    refuses = getattr(of_vdev(module), name)
    whole = f"torch.vdev.{module}.{name}" if module else f"torch.vdev.{name}"
    for call in (refuses, lambda: refuses(1, 2, three=3)):
        with pytest.raises(NoGpuError, match="needs a GPU") as raised:
            call()
        assert whole in str(raised.value) and refused.REASONS[refused.reason(module, name)] in str(
            raised.value
        )
    if inspect.isclass(refuses):
        with pytest.raises(NoGpuError):
            refuses.create()
        assert not hasattr(refuses, "__wrapped__")
        assert name in pydoc.render_doc(refuses)  # as help() does


def test_exceptions_can_be_caught_by_name():
    """A name in an except clause that is no exception would be an error of its own."""
    kinds = {name: kind for name, kind in vars(torch.cuda).items() if isinstance(kind, type)}
    kinds = {name: kind for name, kind in kinds.items() if issubclass(kind, Exception)}
    assert {"CudaError", "OutOfMemoryError"} <= kinds.keys()
    for name, kind in kinds.items():
        assert issubclass(getattr(of_vdev(""), name), Exception), name
        assert issubclass(getattr(of_vdev(""), name), RuntimeError) == issubclass(kind, RuntimeError), name


def test_the_allocator_cannot_be_replaced():
    for name, arguments in REFUSED_AS_NOT_IMPLEMENTED.items():
        with pytest.raises(NotImplementedError, match="allocator"):
            refused_use = getattr(of_vdev(""), RENAMED.get(name, name))(*arguments)
            with refused_use if hasattr(refused_use, "__enter__") else contextlib.nullcontext():
                pass


@pytest.mark.parametrize("module", MODULES)
def test_what_is_not_refused_answers(module):
    answering = [name for name in names(module) if not status_on_vdev(module, name).startswith("refused:")]
    assert answering or module in ("gds", "jiterator", "nccl", "sparse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for name in answering:
            try:
                use(of_vdev(""), module, name, torch.vdev.VDEVGraph)
            except Exception as error:
                pytest.fail(f"{module}.{name} does not answer: {error!r}")


def test_what_is_refused_with_one_argument():
    for module, refusing in REFUSED_WITH.items():
        for name, (argument, _) in refusing.items():
            with pytest.raises((NoGpuError, NotImplementedError)):
                getattr(of_vdev(module), name)(argument)


def test_only_names_of_torch_cuda_are_refused():
    for module, name in REFUSED:
        assert name in names(module), (module, name)
    used = {refused.reason(module, name) for module, name in REFUSED}
    assert used == set(refused.REASONS)


@pytest.mark.parametrize("module", REPEATED)
def test_modules_repeat_the_names(module):
    for name in names(module):
        assert hasattr(of_vdev(module), RENAMED.get(name, name)), name


@pytest.mark.parametrize("device", [MUSA, NPU], ids=lambda device: device.name)
def test_what_other_devices_have_is_spelled_right(device):
    for module, listed in device.same.items():
        assert set(listed.split()) <= set(names(module))
    for module, renamed in device.renamed.items():
        assert set(renamed) <= set(names(module))


def test_a_name_that_torch_gains_shows(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "__all__", [*torch.cuda.__all__, "a_new_name"])
    assert status_on_vdev("", "a_new_name") == "missing" and page() != PAGE.read_text()
