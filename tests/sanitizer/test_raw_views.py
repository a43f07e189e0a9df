"""Memory of a card that is reached through a pointer counts as its owner's, or is an error once freed."""

import gc

import pytest
import torch

import vccl.sanitizer


def view_of(x):
    """Returns what from_blob() makes in C++: a tensor over the memory, which does not keep it."""
    bytes_of = x.untyped_storage().nbytes()
    storage = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, bytes_of)
    return torch.empty(0, device=x.device, dtype=x.dtype).set_(storage, 0, x.shape, x.stride())


@pytest.fixture
def found():
    with vccl.sanitizer.enabled() as found:
        yield found
    torch.vdev.synchronize()


def kinds(found):
    return [report["kind"] for report in found.reports]


def test_a_view_races_with_its_owner(found):
    x = torch.zeros(8, device="vdev")
    y = view_of(x)
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        y.sum()
    assert kinds(found) == ["read after write"]


def test_a_view_of_the_middle_races_with_its_elements_only(found):
    x = torch.zeros(8, device="vdev")
    low, high = view_of(x)[:4], x[4:]
    side = torch.vdev.Stream()
    side.wait_stream(torch.vdev.current_stream())
    high.fill_(1)
    with torch.vdev.stream(side):
        low.sum()
        assert found.reports == []
        view_of(x)[4:].sum()
    assert kinds(found) == ["read after write"]


def test_a_view_whose_owner_lives_is_right(found):
    x = torch.zeros(8, device="vdev")
    y = view_of(x)
    for _ in range(3):
        x = x + y
        y = view_of(x)
    torch.vdev.synchronize()
    assert found.reports == []


@pytest.mark.parametrize("used_before", [True, False])
def test_a_view_of_freed_memory_is_reported(found, used_before):
    x = torch.zeros(8, device="vdev")
    y = view_of(x)
    if used_before:
        y.sum()
    del x  # freed
    y.fill_(1)
    assert kinds(found) == ["write to freed memory"]
    report = found.reports[0]
    assert report["first"] is None and report["second"]["op"] == "aten::fill_"
    assert report["tensor"]["allocated"].rpartition(":")[0].endswith("test_raw_views.py")
    assert "a reference to the tensor" in report["missing"]
    if used_before:
        line = test_a_view_of_freed_memory_is_reported.__code__.co_firstlineno + 6
        assert f"test_raw_views.py:{line}" in report["missing"]


@pytest.mark.parametrize("used_before", [True, False])
def test_memory_that_was_given_out_again_is_not_the_views(found, used_before):
    with torch.vdev.use_mem_pool(torch.vdev.MemPool()):
        x = torch.zeros(8, device="vdev")
        y = view_of(x)
        if used_before:
            y.sum()
        place = x.data_ptr()
        del x
        gc.collect()
        z = y + 1  # gets the memory of x for its result
        assert z.data_ptr() == place
        assert kinds(found) == ["read of freed memory"]
        torch.vdev.synchronize()


def test_an_error_is_raised_at_the_access():
    with vccl.sanitizer.enabled(raises=True):
        y = view_of(torch.ones(8, device="vdev"))
        with pytest.raises(vccl.sanitizer.RaceError, match="read of freed memory"):
            y.sum()
