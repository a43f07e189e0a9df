"""Tensors that one process passes between its cards: torch.vdev.comm and nn.DataParallel."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm


@pytest.fixture
def x():
    return torch.arange(12.0, device="vdev:0").view(4, 3)


def test_broadcast(x):
    copies = comm.broadcast(x, [0, 1, 2])
    assert [copy.device.index for copy in copies] == [0, 1, 2] and copies[0] is x
    assert all(torch.equal(copy.cpu(), x.cpu()) for copy in copies)
    out = [torch.empty(4, 3, device=f"vdev:{card}") for card in (0, 3)]
    assert comm.broadcast(x, out=out)[1] is out[1] and torch.equal(out[1].cpu(), x.cpu())
    lists = comm.broadcast_coalesced([x, x + 1], [0, 1])
    assert [[t.device.index for t in tensors] for tensors in lists] == [[0, 0], [1, 1]]
    assert torch.equal(lists[1][1].cpu(), x.cpu() + 1)


def test_scatter_and_gather(x):
    parts = comm.scatter(x, [0, 1], chunk_sizes=[1, 3])
    assert [(part.device.index, len(part)) for part in parts] == [(0, 1), (1, 3)]
    assert torch.equal(comm.gather(parts, destination=2).cpu(), x.cpu())
    assert comm.gather(parts, destination="cpu").device.type == "cpu"
    out = torch.empty(4, 3, device="vdev:1")
    assert comm.gather(parts, out=out) is out and torch.equal(out.cpu(), x.cpu())
    halves = [torch.empty(2, 3, device=f"vdev:{card}") for card in (0, 1)]
    assert torch.equal(comm.scatter(x, out=halves)[1].cpu(), x.cpu()[2:])


@pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL")
def test_reduce_add(x):
    total = comm.reduce_add([x, (x * 2).to("vdev:1")], destination=1)
    assert total.device.index == 1 and torch.equal(total.cpu(), x.cpu() * 3)
    (sums,) = comm.reduce_add_coalesced([[x], [x.to("vdev:1")]], destination=0)
    assert torch.equal(sums.cpu(), x.cpu() * 2)


def test_order_of_streams(x, gate):
    stream = torch.vdev.Stream("vdev:0")
    gate.close(stream)
    with torch.vdev.stream(stream):
        late = x + 1
        copy = comm.broadcast(late, [0, 1])[1]
    gate.open()
    assert torch.equal(copy.cpu(), x.cpu() + 1)


def test_errors(x):
    with pytest.raises(RuntimeError, match="tensor 0 is on cpu"):
        comm.gather([x.cpu()], destination=0)
    with pytest.raises(RuntimeError, match="2 chunk_sizes for 1 devices"):
        comm.scatter(x, [0], chunk_sizes=[2, 2])
    with pytest.raises(RuntimeError, match="shape"):
        comm.broadcast(x, out=[torch.empty(1, device="vdev:1")])
    with pytest.raises(RuntimeError, match="at least one device"):
        comm.scatter(x, [])


@pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL")
def test_data_parallel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    inputs = torch.randn(7, 3)
    model(inputs).square().sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parallel = nn.DataParallel(model.to("vdev"), device_ids=[0, 1, 2])
    result = parallel(inputs.to("vdev"))
    assert result.device == torch.device("vdev:0") and len(result) == 7
    result.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)
