"""Calls that make the host wait for a card are warned of or refused, as set_sync_debug_mode() says."""

import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def allowed():
    yield
    torch.vdev.set_sync_debug_mode("default")


def on_card(*sizes):
    return torch.ones(*sizes, device="vdev")


def sparse(x):
    indices = (x.cumsum(0) - 1).long()[None]
    return torch.sparse_coo_tensor(indices, x, x.shape, is_coalesced=True, check_invariants=False)


MESSAGE = r"called a synchronizing \w+ operation"
WAITING = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool((x > 0).all()),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "boolean_index": lambda x: x[x > 0],
    "values_at_a_mask": lambda x: x.index_put_((x > 0,), x.clone()),
    "to_sparse": lambda x: x.to_sparse(),
    "to_sparse_csr": lambda x: x.reshape(2, 2).to_sparse_csr(),
    "to_the_host": lambda x: x.cpu(),
    "from_the_host": lambda x: x.copy_(torch.ones(4)),
    "stream": lambda x: torch.vdev.current_stream().synchronize(),
}
NOT_WAITING = {
    "arithmetic": lambda x, pinned: x + 1,
    "slice": lambda x, pinned: x[1:],
    "index_by_numbers": lambda x, pinned: x[x.argsort()],
    "one_value_at_a_mask": lambda x, pinned: x.index_put_((x > 0,), x[0]),
    "known_size": lambda x, pinned: x.repeat_interleave(x.long(), output_size=4),
    "nothing_to_the_host": lambda x, pinned: x[:0].cpu(),
    "pinned": lambda x, pinned: x.copy_(pinned, non_blocking=True),
    "to_pinned": lambda x, pinned: pinned.copy_(x, non_blocking=True),
    "between_tensors": lambda x, pinned: x.clone(),
    "sparse_to_sparse": lambda x, pinned: sparse(x).to_sparse(),
    "event": lambda x, pinned: torch.vdev.current_stream().record_event().synchronize(),
    "synchronize": lambda x, pinned: torch.vdev.synchronize(),
}


@pytest.mark.parametrize("name", WAITING)
def test_calls_that_wait(name):
    x, call = on_card(4), WAITING[name]
    call(x)
    torch.vdev.set_sync_debug_mode("warn")
    assert torch.vdev.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match=MESSAGE):
        call(x)
    torch.vdev.set_sync_debug_mode(2)
    with pytest.raises(RuntimeError, match=MESSAGE):
        call(x)
    torch.vdev.set_sync_debug_mode(0)
    call(x)


@pytest.mark.parametrize("name", NOT_WAITING)
def test_calls_that_do_not_wait(name):
    x, pinned, call = on_card(4), torch.ones(4).pin_memory(), NOT_WAITING[name]
    torch.vdev.set_sync_debug_mode("error")
    call(x, pinned)
    call(x, pinned)
    assert torch.vdev.get_sync_debug_mode() == 2


def test_a_training_step_does_not_wait():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to("vdev")
    torch.vdev.set_sync_debug_mode("error")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = on_card(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("mode", ["some", 3, -1])
def test_other_modes_are_refused(mode):
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        torch.vdev.set_sync_debug_mode(mode)
    assert torch.vdev.get_sync_debug_mode() == 0
