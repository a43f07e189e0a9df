"""Objects travel as bytes on whichever device the group has for them."""

import pytest
import torch
import torch.distributed as dist

BACKENDS = ["vccl", "vdev:vccl", "cpu:vccl", "cpu:gloo,vdev:vccl", "cpu:vccl,vdev:vccl"]


class Thing:
    """Not a builtin, equal by value."""

    def __init__(self, name: str, values: list) -> None:
        self.name, self.values = name, values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and vars(self) == vars(other)


def objects_of(rank: int) -> list:
    """Several kinds, of other sizes on every rank."""
    return [
        None,
        {"rank": rank, "nested": [(rank, "x" * (300 * rank + 1))]},
        Thing(f"thing {rank}", list(range(rank * 1000))),
        torch.arange(rank + 2, dtype=torch.float64),
        b"\x00" * (rank * 70_000),
    ]


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.device == right.device
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


def collectives(rank, size, group=None, device=None):
    everything = [objects_of(other) for other in range(size)]
    gathered = [None] * size
    dist.all_gather_object(gathered, objects_of(rank), group=group)
    assert same(gathered, everything)

    for root in range(size):
        gathered = [None] * size if rank == root else None
        dist.gather_object(objects_of(rank), gathered, group=group, group_dst=root)
        assert gathered is None or same(gathered, everything)

        mine = objects_of(rank) if rank == root else [None] * len(objects_of(0))
        dist.broadcast_object_list(mine, group=group, group_src=root, device=device)
        assert same(mine, objects_of(root))

        received = [None]
        parts = [[root, *objects_of(other)] for other in range(size)] if rank == root else None
        dist.scatter_object_list(received, parts, group=group, group_src=root)
        assert same(received[0], [root, *objects_of(rank)])


def point_to_point(rank, size, group=None, device=None):
    """Around the ring, the even ranks first."""
    right, left = (rank + 1) % size, (rank - 1) % size
    received = [None] * len(objects_of(0))
    for turn in range(2):
        if rank % 2 == turn:
            dist.send_object_list(objects_of(rank), group=group, group_dst=right, device=device)
        else:
            dist.recv_object_list(received, group=group, group_src=left, device=device)
            assert same(received, objects_of(left))


def init(ranks, backend):
    dist.init_process_group(backend, store=ranks.store, rank=ranks.rank, world_size=ranks.size)


def own_devices(ranks):
    """The rank's device of each type that the group takes."""
    for device in dist.group.WORLD._device_types:
        yield torch.device(device.type, ranks.rank) if device.type == "vdev" else device


everywhere = pytest.mark.parametrize("backend", BACKENDS, ids=lambda name: name.replace(":", "_"))


@pytest.mark.ranks(1, 3, group=False)
@everywhere
def test_collectives(ranks, backend):
    init(ranks, backend)
    collectives(ranks.rank, ranks.size)


@pytest.mark.ranks(2, group=False)
@everywhere
def test_broadcast_through_a_chosen_device(ranks, backend):
    init(ranks, backend)
    for device in own_devices(ranks):
        collectives(ranks.rank, ranks.size, device=device)


@pytest.mark.ranks(2, group=False)
@everywhere
def test_send_and_recv(ranks, backend):
    init(ranks, backend)
    point_to_point(ranks.rank, ranks.size)


@pytest.mark.ranks(4, group=False)
@everywhere
def test_send_and_recv_through_a_chosen_device(ranks, backend):
    init(ranks, backend)
    for device in own_devices(ranks):
        point_to_point(ranks.rank, ranks.size, device=device)


@pytest.mark.ranks(4)
def test_of_subgroups(ranks):
    rank = ranks.rank
    for members in ([1, 3], [0, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            collectives(members.index(rank), len(members), group)
        gathered = [None] * 2
        if rank in members:
            gathered = [None] * len(members)
            dist.all_gather_object(gathered, rank, group=group)
            assert gathered == members


@pytest.mark.ranks(2, group=False)
def test_card_tensors_as_objects(ranks):
    """Tensors among the objects keep their device, wherever the bytes go."""
    init(ranks, "vccl")
    gathered = [None] * ranks.size
    dist.all_gather_object(gathered, torch.full((3,), ranks.rank, device="vdev"))
    for other, tensor in enumerate(gathered):
        assert tensor.device == torch.device("vdev", other)
        assert tensor.tolist() == [other] * 3
