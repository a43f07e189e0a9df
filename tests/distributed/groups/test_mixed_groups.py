"""Groups that serve the CPU with one backend and the cards with another, or both with vccl."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vccl._device_type import backend_name

BACKENDS = ["cpu:gloo,vdev:vccl", "vdev:vccl,cpu:gloo", "cpu:vccl,vdev:vccl"]
everywhere = pytest.mark.parametrize("backend", BACKENDS, ids=lambda name: name.replace(":", "_"))
DEVICES = ("cpu", "vdev")


def init(rank, size, store, backend, bound=False):
    device_id = torch.device("vdev", rank) if bound else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=device_id)
    return dist.group.WORLD


def numbers(rank: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 4, generator=generator, dtype=torch.float64).to(device)


def use(group, device: str) -> None:
    """Several collectives on one device, checked."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    xs = [numbers(other, device) for other in range(size)]
    total = torch.stack(xs).sum(0)

    x = xs[rank].clone()
    dist.all_reduce(x, group=group)
    torch.testing.assert_close(x, total)

    x = xs[rank].clone()
    dist.broadcast(x, group_src=size - 1, group=group)
    assert torch.equal(x, xs[-1])

    gathered = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(gathered, xs[rank], group=group)
    assert all(torch.equal(a, b) for a, b in zip(gathered, xs, strict=True))

    together = x.new_empty(6 * size, 4)
    dist.all_gather_into_tensor(together, xs[rank], group=group)
    assert torch.equal(together, torch.cat(xs))

    received = torch.empty_like(x)
    parts = [y.clone() for y in xs] if rank == 0 else None
    dist.scatter(received, parts, group_src=0, group=group)
    assert torch.equal(received, xs[rank])

    swapped = x.new_empty(size, 4)
    dist.all_to_all_single(swapped, xs[rank][:size].contiguous(), group=group)
    assert torch.equal(swapped, torch.stack([y[rank] for y in xs]))


def check_group(group, backend: str) -> None:
    for device, name in (pair.split(":") for pair in backend.split(",")):
        assert group._get_backend(torch.device(device)).name() == (backend_name() if name == "vccl" else name)
        use(group, device)
    dist.barrier(group)
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, dist.get_rank(group), group=group)
    assert gathered == list(range(dist.get_world_size(group)))


@pytest.mark.ranks(3, group=False)
@everywhere
@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound"])
def test_both_devices(ranks, backend, bound):
    group = init(ranks.rank, ranks.size, ranks.store, backend, bound)
    assert dist.get_backend() == backend
    check_group(group, backend)


@pytest.mark.ranks(2, group=False)
@everywhere
def test_both_devices_at_once(ranks, backend):
    """Launched alternately, waited for in another order."""
    rank, size = ranks.rank, ranks.size
    init(rank, size, ranks.store, backend)
    tensors = [torch.full((1000,), float(rank + i), device=DEVICES[i % 2]) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.tolist() == [sum(range(size)) + size * i] * 1000


@pytest.mark.ranks(3, group=False)
@everywhere
@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound"])
def test_new_group(ranks, backend, bound):
    rank, size = ranks.rank, ranks.size
    init(rank, size, ranks.store, backend, bound)
    for chosen in (None, backend, "vccl", "gloo", "vdev:vccl"):
        for members in ([0, 2], [1], list(range(size))):
            group = dist.new_group(members, backend=chosen)
            if rank not in members:
                assert group == dist.GroupMember.NON_GROUP_MEMBER
            elif chosen in (None, backend):
                check_group(group, backend)
            elif chosen == "gloo":
                use(group, "cpu")
            else:
                use(group, "vdev")
            if rank in members:
                dist.destroy_process_group(group)
    check_group(dist.group.WORLD, backend)


@pytest.mark.ranks(4, group=False)
@everywhere
def test_split_group(ranks, backend):
    group = init(ranks.rank, ranks.size, ranks.store, backend, bound=True)
    child = dist.split_group(group, [[0, 2], [1, 3]])
    check_group(child, backend)


@pytest.mark.torch(">=2.13", "split_group takes no backends")
@pytest.mark.ranks(4, group=False)
@everywhere
def test_split_group_for_one_of_its_devices(ranks, backend):
    group = init(ranks.rank, ranks.size, ranks.store, backend, bound=True)
    if "gloo" not in backend:
        return  # one backend serves both devices, and torch's filter goes by backend
    child = dist.split_group(group, [[0, 3], [1, 2]], backend="vdev:vccl")
    assert [device.type for device in child._device_types] == ["vdev"]
    use(child, "vdev")
    assert child._get_sequence_number_for_group() > 0


@pytest.mark.ranks(4, group=False)
@everywhere
@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound"])
def test_device_mesh(ranks, backend, bound):
    init(ranks.rank, ranks.size, ranks.store, backend, bound)
    for device in DEVICES:
        mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("outer", "inner"))
        for dimension in ("outer", "inner"):
            use(mesh.get_group(dimension), device)
        use(mesh["outer", "inner"]._flatten().get_group(), device)


@pytest.mark.ranks(2, group=False)
@everywhere
def test_ddp_on_both_devices(ranks, backend):
    """One group trains a network on the card and another on the CPU: both as one process would."""
    init(ranks.rank, ranks.size, ranks.store, backend)
    nets = {}
    for device in DEVICES:
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(4, 8, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 2).double())
        nets[device] = DistributedDataParallel(net.to(device), bucket_cap_mb=0.0001)
    torch.manual_seed(5)
    reference = nn.Sequential(nn.Linear(4, 8, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 2).double())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (reference, *nets.values())]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for device, net in nets.items():
            net(numbers(10 * step + ranks.rank, device)).square().mean().backward()
        torch.cat(
            [reference(numbers(10 * step + other, "cpu")) for other in range(ranks.size)]
        ).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for device, net in nets.items():
        assert net._get_ddp_logging_data()["backend_name"] == "vccl"
        for p, q in zip(net.module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(
                p.cpu(), q, rtol=1e-12, atol=1e-12, msg=lambda t, d=device: f"{d}: {t}"
            )


@pytest.mark.ranks(2, group=False)
@everywhere
def test_fsdp_with_offloaded_shards(ranks, backend):
    """FSDP2 keeps its shards on the CPU and communicates on the cards."""
    rank, size = ranks.rank, ranks.size
    init(rank, size, ranks.store, backend)
    torch.manual_seed(5)
    net, reference = nn.Linear(4, 8).double(), nn.Linear(4, 8).double()
    reference.load_state_dict(net.state_dict())
    fully_shard(
        net, mesh=init_device_mesh("vdev", (size,)), offload_policy=CPUOffloadPolicy(pin_memory=False)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(numbers(rank, "vdev")).square().mean().backward()
    optimizer.step()
    torch.cat([reference(numbers(other, "cpu")) for other in range(size)]).square().mean().backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        assert p.device.type == "cpu"
        shard = q.detach().chunk(size)[rank]
        torch.testing.assert_close(p.to_local().detach(), shard, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(2, group=False)
def test_destroyed_and_made_again(ranks):
    """Groups of every kind after one another; gloo's need keys of their own."""
    for life, backend in enumerate([*BACKENDS, "vccl", "gloo", "vccl", *BACKENDS]):
        own = dist.PrefixStore(f"life {life}", ranks.store) if "gloo" in backend else ranks.store
        group = init(ranks.rank, ranks.size, own, backend)
        if ":" in backend:
            check_group(group, backend)
        dist.destroy_process_group()


@pytest.mark.ranks(2, group=False)
def test_refuses_devices_without_backend(ranks):
    init(ranks.rank, ranks.size, ranks.store, "vdev:vccl")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    use(dist.group.WORLD, "vdev")
