"""Trains a transformer with Liger's Triton kernels on two ranks, and on the CPU with torch's operators.

Run by torchrun. The argument `cpu` takes gloo and the CPU. The last line has the device and the losses.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

ON_CPU = "cpu" in sys.argv
WORDS, WIDTH, LENGTH, STEPS = 40, 32, 8, 4

if not ON_CPU:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if ON_CPU:
        return F.rms_norm(x, (WIDTH,), weight, 1e-6)
    return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)


def silu_times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y if ON_CPU else LigerSiLUMulFunction.apply(x, y)


def rotate(q, k, cos, sin):
    if not ON_CPU:
        return LigerRopeFunction.apply(q, k, cos, sin)

    def rotated(x):
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), -1) * sin

    return rotated(q), rotated(k)


def cross_entropy(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if ON_CPU:
        return F.cross_entropy(x, targets)
    return LigerCrossEntropyFunction.apply(x, targets, None, -100)[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ParameterList([torch.ones(WIDTH), torch.ones(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64)
        self.down = nn.Linear(64, WIDTH)

    def forward(self, x, cos, sin):
        heads = self.qkv(rms_norm(x, self.norms[0])).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        q, k = rotate(heads[0].contiguous(), heads[1].contiguous(), cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = rms_norm(x, self.norms[1])
        return x + self.down(silu_times(self.gate(y), self.up(y)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList([Block(), Block()])
        angles = torch.outer(torch.arange(LENGTH), 100.0 ** -torch.arange(0, 1, 4 / WIDTH)).repeat(1, 2)
        self.register_buffer("cos", angles.cos()[None])
        self.register_buffer("sin", angles.sin()[None])

    def forward(self, words, targets):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def main() -> None:
    device = torch.device("cpu") if ON_CPU else torch.accelerator.current_accelerator()
    dist.init_process_group("gloo" if ON_CPU else "nccl" if device.type == "cuda" else "vccl")
    rank = dist.get_rank()
    if not ON_CPU:
        torch.accelerator.set_device_index(rank)
        device = torch.device(device.type, rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(device), device_ids=None if ON_CPU else [rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(STEPS):
        text = torch.randint(0, WORDS, (2, LENGTH + 1), generator=data).cumsum(1).remainder(WORDS).to(device)
        optimizer.zero_grad()
        loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    if rank == 0:
        print("RESULT " + json.dumps({"device": device.type, "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
