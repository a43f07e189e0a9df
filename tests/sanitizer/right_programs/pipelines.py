"""Pipelines of two ranks in all schedules, for which no report may come."""

import torch
import torch.distributed as dist
from right import STEPS, WIDTH, Block, right
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

CHUNKS, BATCH = 4, 8


def run(schedule_type: type, stages_per_rank: int, v_shape: bool = False) -> None:
    """Trains with a schedule. In the shape of a V, rank 0 has the first stage and the last."""
    rank, size = dist.get_rank(), 2
    device = torch.device("vdev", rank)
    number = size * stages_per_rank
    mine = [rank, number - 1 - rank] if v_shape else list(range(rank, number, size))
    torch.manual_seed(3)
    blocks = [Block() for _ in range(number)]
    stages = [PipelineStage(blocks[i].to(device), i, number, device) for i in mine]
    stage = stages if stages_per_rank > 1 else stages[0]
    schedule = schedule_type(stage, CHUNKS, loss_fn=nn.functional.mse_loss)
    parameters = [p for each in stages for p in each.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = [torch.randn(BATCH, WIDTH, device=device)] if 0 in mine else []
        if number - 1 in mine:
            losses: list[torch.Tensor] = []
            schedule.step(*inputs, target=torch.randn(BATCH, WIDTH, device=device), losses=losses)
            torch.stack(losses).mean().item()
        else:
            schedule.step(*inputs)
        optimizer.step()


@right(2)
def gpipe() -> None:
    run(ScheduleGPipe, 1)


@right(2)
def one_forward_one_backward() -> None:
    run(Schedule1F1B, 1)


@right(2)
def interleaved() -> None:
    run(ScheduleInterleaved1F1B, 2)


@right(2)
def looped_breadth_first() -> None:
    run(ScheduleLoopedBFS, 2)


@right(2)
def interleaved_zero_bubble() -> None:
    run(ScheduleInterleavedZeroBubble, 2)


@right(2)
def zero_bubble_in_the_shape_of_a_v() -> None:
    run(ScheduleZBVZeroBubble, 2, v_shape=True)
