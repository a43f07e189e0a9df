"""Races of torch itself, which docs/inside/torch.md lists with their repairs.

A gate holds the card's stream back, so torch reads too early in every run. A test that fails here says that
torch waits now, and that its row can go.
"""

import contextlib
import threading
from unittest import mock

import pytest
import torch
from gate import BOUND, Gate
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer


@pytest.mark.asynchronous
@pytest.mark.ranks(1)
def test_consolidated_states_of_zero_are_not_there_yet(ranks):
    model = nn.Linear(4, 4, device="vdev")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.ones(2, 4, device="vdev")).sum().backward()
    optimizer.step()
    states_on_the_card = optimizer.optim.state_dict
    with contextlib.ExitStack() as gates:

        def states_behind_a_gate():
            # consolidate_state_dict() has made a tensor on the card, and waited for the stream, before this.
            gates.enter_context(gate)
            return states_on_the_card()

        gate = Gate()
        with mock.patch.object(optimizer.optim, "state_dict", states_behind_a_gate):
            optimizer.consolidate_state_dict()
        # The momenta are CPU tensors now, and the card has not begun to copy them.
        found = optimizer._all_state_dicts[0]["state"]
        assert {state["momentum_buffer"].device.type for state in found.values()} == {"cpu"}
        assert gate.is_closed()
        gate.open_and_wait()  # the repair: synchronize before state_dict()
        states = optimizer.state_dict()["state"].values()
        for parameter, state in zip(model.parameters(), states, strict=True):
            assert torch.equal(state["momentum_buffer"], parameter.grad.cpu())


@pytest.mark.asynchronous
@pytest.mark.ranks(1)
@pytest.mark.parametrize("repaired", [False, True])
def test_a_stager_does_not_wait_for_the_program(ranks, repaired):
    x = torch.zeros(1000, device="vdev")
    stager = DefaultStager(StagingOptions(use_shared_memory=False))
    with Gate() as gate:
        x.fill_(1)
        if repaired:
            gate.open_and_wait()  # as torch.accelerator.synchronize() before stage() waits for it
        staged = stager.stage({"x": x}).result(BOUND / 2)
        assert repaired or gate.is_closed()
        assert staged["x"].eq(1.0 if repaired else 0.0).all()
    stager.close()


def waiting_get(original):
    """The repair that docs/inside/torch.md gives."""

    def get(self, device):
        copy = original(self, device)
        if device.type == "cpu":
            torch.accelerator.synchronize()
        return copy

    return get


@pytest.mark.asynchronous
@pytest.mark.ranks(1)
@pytest.mark.parametrize("repaired", [False, True])
def test_gradients_on_the_cpu_are_unscaled_too_early(ranks, repaired):
    from torch.amp.grad_scaler import _MultiDeviceReplicator

    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 8.0)
    optimizer = torch.optim.SGD([weight], lr=1)
    scaler = ShardedGradScaler(device="vdev")
    inverse, found_inf = torch.full((), 1.0, device="vdev"), torch.zeros((), device="vdev")
    with Gate() as gate:
        inverse.mul_(0.25)
        if repaired:
            threading.Timer(0.1, gate.open).start()
            with mock.patch.object(_MultiDeviceReplicator, "get", waiting_get(_MultiDeviceReplicator.get)):
                scaler._unscale_grads_(optimizer, inverse, found_inf)
            assert weight.grad.tolist() == [2.0] * 3
        else:
            # It returns, so the CPU's kernel has multiplied by memory that the card has not written yet.
            scaler._unscale_grads_(optimizer, inverse, found_inf)
            assert gate.is_closed()
