"""Races of torch itself are found in its unmodified code, and are gone with a repair from outside."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from pairs import brief, reports_of, zeros
from right import adam, batch, make_model
from torch import nn
from torch.amp.grad_scaler import _MultiDeviceReplicator
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step_interleaved
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

BOUND = 60  # seconds


def staged(repaired: bool) -> None:
    """The staging stream reads weights before the stream of the program has written them."""
    x = zeros()
    stager = DefaultStager(StagingOptions(use_shared_memory=False))
    x.fill_(1)
    if repaired:
        torch.accelerator.synchronize()
    stager.stage({"x": x}).result(BOUND)
    stager.close()


def unscaled(repaired: bool) -> None:
    """The CPU multiplies by the inverse of the scale before the card has written it."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 8.0)
    optimizer = torch.optim.SGD([weight], lr=1)
    scaler = torch.amp.GradScaler("vdev")
    scaler.scale(zeros(1))
    get = waiting_get if repaired else _MultiDeviceReplicator.get
    with mock.patch.object(_MultiDeviceReplicator, "get", get):
        scaler.unscale_(optimizer)


def waiting_get(
    self: _MultiDeviceReplicator, device: torch.device, get: Callable = _MultiDeviceReplicator.get
) -> torch.Tensor:
    copy = get(self, device)
    torch.accelerator.synchronize()
    return copy


def trained_in_low_precision(repaired: bool) -> None:
    """DDP's own mixed precision copies weights on a stream which waits neither for the step nor for
    the backward pass that has used the copies' memory (DistributedDataParallel._root_copy_hook)."""
    precision = _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    model = DistributedDataParallel(make_model(1), mixed_precision=precision)
    optimizer = adam(model)
    for step in range(2):
        inputs = batch(step).pin_memory().to("vdev", non_blocking=True)
        if repaired:
            torch.accelerator.synchronize()
        model(inputs).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def consolidated(repaired: bool) -> None:
    """The states of other ranks are read on the host before they are there."""
    model = nn.Linear(4, 4, device="vdev")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.ones(2, 4, device="vdev")).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict()
    if repaired:
        torch.accelerator.synchronize()
    for state in optimizer.state_dict()["state"].values():
        state["momentum_buffer"].sum()


def compressed(repaired: bool) -> None:
    """A copy of the gradients dies in the hook's last callback, while the stream of the callback reads it,
    and the next bucket gets its memory."""

    def waiting(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future

    torch.manual_seed(1)
    layers = [nn.Linear(512, 512, bias=False) for _ in range(2)]  # one bucket each
    model = DistributedDataParallel(nn.Sequential(*layers).to("vdev"), bucket_cap_mb=1)
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, waiting if repaired else powerSGD_hook)
    for _ in range(5):
        model(torch.ones(2, 512).to("vdev")).sum().backward()


def stepped_in_the_reduction(repaired: bool) -> None:
    """The weights go into flat buffers when the reduction of the gradients is under way already, and the step
    in the reduction's callback does not wait for that."""
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    model.register_comm_hook(None, hook_with_zero_step_interleaved(allreduce_hook, model, optimizer))

    def init(self: ZeroRedundancyOptimizer, init: Callable = optimizer._init_zero_for_overlap) -> None:
        init()
        if repaired:
            torch.accelerator.synchronize()

    with mock.patch.object(ZeroRedundancyOptimizer, "_init_zero_for_overlap", init):
        for step in range(4):
            model(batch(step).to("vdev")).square().mean().backward()


def told(reports: list[dict[str, Any]]) -> str:
    return "\n".join(map(brief, reports))


RACES = {
    staged: {"read after write"},
    unscaled: {"write after write", "read after write"},
    consolidated: {"read after write"},
    compressed: {"use after free"},
    stepped_in_the_reduction: {"write after write", "read after write"},
    trained_in_low_precision: {"read after write", "use after free"},
}
plays = pytest.mark.parametrize("play", RACES)


@pytest.mark.ranks(1)
@plays
def test_a_race_of_torch_is_reported(ranks, play):
    reports = reports_of(play, False)
    assert reports, "the race was missed"
    assert {report["kind"] for report in reports} <= RACES[play], told(reports)
    assert all("must wait" in report["missing"] or "record_stream" in report["missing"] for report in reports)


@pytest.mark.ranks(1)
@plays
def test_the_repair_is_not_reported(ranks, play):
    reports = reports_of(play, True)
    assert not reports, told(reports)
