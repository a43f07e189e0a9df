"""DistributedDataParallel over several ranks equals one process that trains on the union of their batches."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from common import everywhere
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH, STEPS = 4, 24, 20
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


class Net(nn.Module):
    """A few layers; `branch` is used when asked for."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.LayerNorm(3 * WIDTH))
        self.norm = nn.BatchNorm1d(3 * WIDTH) if batch_norm else nn.Identity()
        self.branch = nn.Linear(3 * WIDTH, 3 * WIDTH)
        self.out = nn.Linear(3 * WIDTH, 5)

    def forward(self, x: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        x = self.norm(self.inner(x))
        return self.out(self.branch(x) if use_branch else x)


def make_net(dtype: torch.dtype, **options) -> Net:
    torch.manual_seed(7)
    return Net(**options).to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 5, (BATCH,), generator=generator)


def alone(size: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The parameters after training on every rank's batches at once."""
    net = make_net(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        parts = [batch(step, rank, dtype) for rank in range(size)]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.state_dict()


def assert_equal_parameters(net: nn.Module, expected: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, value in net.state_dict().items():
        torch.testing.assert_close(
            value.cpu(), expected[name], rtol=tolerance, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}"
        )


def together(rank, size, device, dtype, hook=None, options=None):
    on_device = torch.device(device, rank) if device == "vdev" else torch.device("cpu")
    # Several buckets, so that communication and computation interleave.
    net = DistributedDataParallel(
        make_net(dtype).to(on_device),
        device_ids=[rank] if device == "vdev" else None,
        bucket_cap_mb=0.02,
        **(options or {}),
    )
    if hook:
        net.register_comm_hook(None, getattr(default_hooks, hook))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = (tensor.to(on_device) for tensor in batch(step, rank, dtype))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    # Gradients that went through float16 keep three digits.
    tolerance = 5e-3 if hook == "fp16_compress_hook" else TOLERANCE[dtype]
    assert_equal_parameters(net.module, alone(size, dtype), tolerance)
    # Every rank holds the same bits.
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    others = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(others, flat)
    assert all(torch.equal(flat, other) for other in others)


@pytest.mark.ranks(2, 4)
@everywhere
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_one_process(ranks, dtype, device):
    together(ranks.rank, ranks.size, device, dtype)


@pytest.mark.ranks(4, hosts=["here", "here", "there", "there"])
@everywhere
def test_equals_one_process_over_two_hosts(ranks, device):
    together(ranks.rank, ranks.size, device, torch.float64)


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"broadcast_buffers": False},
        {"find_unused_parameters": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(ranks, device, options):
    together(ranks.rank, ranks.size, device, torch.float64, None, options)


@pytest.mark.ranks(2)
@everywhere
def test_unused_parameters(ranks, device):
    """A parameter that one rank did not use gets the other's gradient, halved."""
    together_with_unused(ranks.rank, ranks.size, device)


def together_with_unused(rank, size, device):
    on_device = torch.device(device, rank) if device == "vdev" else torch.device("cpu")
    net = DistributedDataParallel(make_net(torch.float64).to(on_device), find_unused_parameters=True)
    for step in range(4):
        x, y = (tensor.to(on_device) for tensor in batch(step, rank, torch.float64))
        net.zero_grad(set_to_none=False)
        use_branch = step % 2 == 0 or rank == 0  # rank 1 skips it in the odd steps
        nn.functional.cross_entropy(net(x, use_branch), y).backward()
        reference = make_net(torch.float64)
        losses = []
        for other in range(size):
            rx, ry = batch(step, other, torch.float64)
            losses.append(nn.functional.cross_entropy(reference(rx, step % 2 == 0 or other == 0), ry))
        (sum(losses) / size).backward()
        for (name, p), q in zip(net.module.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(
                p.grad.cpu(), q.grad, rtol=1e-12, atol=1e-12, msg=lambda t, n=name: f"{n}: {t}"
            )


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook"])
def test_comm_hooks(ranks, device, hook):
    together(ranks.rank, ranks.size, device, torch.float32, hook)


def with_power_sgd(rank, size, device):
    on_device = torch.device(device, rank) if device == "vdev" else torch.device("cpu")
    net = DistributedDataParallel(make_net(torch.float32).to(on_device))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(12):
        x, y = (tensor.to(on_device) for tensor in batch(step % 3, rank, torch.float32))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.ranks(2)
@everywhere
def test_power_sgd(ranks, device):
    """Its callbacks wait for further collectives of the same group."""
    with_power_sgd(ranks.rank, ranks.size, device)


@pytest.mark.ranks(2)
@everywhere
def test_no_sync(ranks, device):
    on_device = torch.device(device, ranks.rank) if device == "vdev" else torch.device("cpu")
    net = DistributedDataParallel(make_net(torch.float64).to(on_device))
    reference = make_net(torch.float64)
    for micro in range(3):
        x, y = (tensor.to(on_device) for tensor in batch(micro, ranks.rank, torch.float64))
        with net.no_sync() if micro < 2 else contextlib.nullcontext():
            nn.functional.cross_entropy(net(x), y).backward()
        for other in range(ranks.size):
            rx, ry = batch(micro, other, torch.float64)
            (nn.functional.cross_entropy(reference(rx), ry) / ranks.size).backward()
    for p, q in zip(net.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(2)
@everywhere
def test_buffers(ranks, device):
    rank = ranks.rank
    on_device = torch.device(device, rank) if device == "vdev" else torch.device("cpu")
    net = DistributedDataParallel(make_net(torch.float32, batch_norm=True).to(on_device))
    for step in range(3):
        x, y = (tensor.to(on_device) for tensor in batch(step, rank, torch.float32))
        nn.functional.cross_entropy(net(x), y).backward()
    net(batch(9, rank, torch.float32)[0].to(on_device))  # the forward broadcasts rank 0's statistics first
    net.eval()
    dist.broadcast(net.module.norm.num_batches_tracked, 0)
    assert net.module.norm.num_batches_tracked.item() == 4
    mean = net.module.norm.running_mean.clone()
    dist.broadcast(mean, 0)
    if rank:  # each rank then took one step of its own from the same statistics
        assert not torch.equal(mean, net.module.norm.running_mean)


@pytest.mark.ranks(2)
@everywhere
def test_join(ranks, device):
    on_device = torch.device(device, ranks.rank) if device == "vdev" else torch.device("cpu")
    net = DistributedDataParallel(make_net(torch.float32).to(on_device))
    with net.join():
        for step in range(3 + 2 * ranks.rank):  # uneven numbers of batches
            x, y = (tensor.to(on_device) for tensor in batch(step, ranks.rank, torch.float32))
            nn.functional.cross_entropy(net(x), y).backward()
