"""VCCL_STRICT=nccl: what NCCL refuses is refused, and what NCCL does otherwise is done so.

nccl_rows.py has the calls; each is made in both modes, and the table of docs/inside/nccl.md says what came of
it.
"""

import datetime

import nccl_table
import pytest
import torch
import torch.distributed as dist
from common import backend_of, hear, tell
from nccl_rows import ROWS
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STRICT = {"VCCL_STRICT": "nccl"}


def test_the_table_is_what_the_rows_do(rank_pool, pytestconfig):
    strict = nccl_table.run(rank_pool, "vdev", strict=True)
    free = nccl_table.run(rank_pool, "vdev", strict=False)
    expected = [(row.strict or row.nccl, row.free) for row in ROWS]
    assert list(zip(strict, free, strict=True)) == expected
    found = nccl_table.table(strict, free)
    if pytestconfig.getoption("write_tables"):
        nccl_table.write(found)
    assert nccl_table.committed() == found


def told(rank, size):
    torch.accelerator.set_device_index(rank)
    x = torch.ones(2, 3, device="vdev").t()
    with pytest.raises(ValueError, match="contiguous") as caught:
        dist.all_reduce(x)
    return str(caught.value)


def test_the_error_says_who_called_what_and_what_to_do(rank_pool):
    for rank, text in enumerate(rank_pool.run(2, told, env=STRICT)):
        assert text == (
            f"Tensors must be contiguous: rank {rank} of group default_pg called all_reduce with a tensor of "
            "sizes [3, 2] and strides [1, 3]. This is an error on GPUs. The cards could do it, and do with "
            "VCCL_STRICT=0; to run on GPUs, call contiguous()."
        )


def wrong_value(rank, size, store):
    with pytest.raises(ValueError, match='VCCL_STRICT is "1"; allowed are nccl and 0'):
        dist.init_process_group("vccl", store=store, rank=rank, world_size=size)


def test_a_wrong_value(rank_pool):
    rank_pool.run(2, wrong_value, env={"VCCL_STRICT": "1"}, group=False)


def differing(rank, size, store):
    with pytest.MonkeyPatch.context() as changed, pytest.raises(dist.DistBackendError) as caught:
        changed.setenv("VCCL_STRICT", "nccl" if rank == 1 else "0")
        dist.init_process_group("vccl", store=store, rank=rank, world_size=size)
    return str(caught.value)


def test_ranks_with_different_values(rank_pool):
    texts = rank_pool.run(2, differing, group=False)
    for text in texts:
        assert "group default_pg" in text and "VCCL_STRICT=nccl" in text and "VCCL_STRICT=0" in text, text
        assert "rank 0" in text and "rank 1" in text, text


def children(rank, size, store):
    card = torch.device("vdev", rank)
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, device_id=card)
    world = dist.group.WORLD
    groups = [world, dist.new_group([0, 1]), dist.split_group(split_ranks=[[0, 1]])]
    assert all(group._get_backend(card)._is_strict for group in groups)
    assert "cpu" not in {device.type for device in world._device_types}


def test_groups_of_a_strict_group_are_strict(rank_pool):
    rank_pool.run(2, children, env=STRICT, group=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x):
        return self.layers(x)


def what_torch_does(rank, size):
    """What torch's own code calls is no error."""
    torch.accelerator.set_device_index(rank)
    card = torch.device("vdev", rank)
    objects: list = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    (shared,) = received = [rank]
    dist.broadcast_object_list(received, 0)
    assert received == [0] and shared == rank
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4).to(card, memory_format=torch.channels_last)
    net = DistributedDataParallel(Net().to(card, memory_format=torch.channels_last), device_ids=[rank])
    net(x).sum().backward()
    torch.manual_seed(0)
    torch.randn(2, 3, 4, 4)
    sharded = Net().to(card)
    for layer in sharded.layers:
        fully_shard(layer)
    fully_shard(sharded)
    sharded(x).sum().backward()
    full = sharded.layers[3].weight.grad.full_tensor()
    torch.testing.assert_close(full, net.module.layers[3].weight.grad)
    dist.barrier()


def test_what_torch_does_goes_on(rank_pool):
    rank_pool.run(2, what_torch_does, env=STRICT)


def rings(rank, size, store, bound):
    """Unbatched and batched messages, with collectives in between."""
    torch.accelerator.set_device_index(rank)
    card = torch.device("vdev", rank)
    options = {"device_id": card} if bound else {}
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, **options)
    to, source = (rank + 1) % size, (rank - 1) % size
    x = torch.full((100_000,), rank + 1.0, device=card)
    for number in range(4):
        y = torch.empty_like(x)
        work = dist.all_reduce(torch.ones(1000, device=card), async_op=True)
        if number % 2:
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, source)])
        elif rank % 2:
            works = [dist.irecv(y, source), dist.isend(x, to)]
        else:
            works = [dist.isend(x, to), dist.irecv(y, source)]
        for each in (work, *works):
            each.wait()
        assert y.eq(source + 1.0).all()


@pytest.mark.parametrize("bound", [False, True])
def test_messages_and_collectives(rank_pool, bound):
    rank_pool.run(2, rings, bound, env=STRICT, group=False)


def reduced_once(rank):
    """Returns a tensor of this rank's card, behind the group's first collective on it."""
    torch.accelerator.set_device_index(rank)
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    return x


def waits_in_vain(rank, size):
    x = reduced_once(rank)
    if rank == 1:
        hear("given up")
        with pytest.raises(dist.DistBackendError, match="rank 0 aborted"):
            dist.all_reduce(x, async_op=True).wait(datetime.timedelta(seconds=300))
        return
    work = dist.all_reduce(x, async_op=True)
    late = r"all_reduce \(number 2 of the group\) did not end within the 20 ms that wait\(\) was given"
    with pytest.raises(dist.DistBackendError, match=late + r"\. So the group was aborted, as NCCL's is"):
        work.wait(datetime.timedelta(milliseconds=20))
    with pytest.raises(dist.DistBackendError, match="aborted group .* " + late):
        work.wait(datetime.timedelta(seconds=300))
    with pytest.raises(dist.DistBackendError, match="aborted"):
        dist.all_reduce(x)
    tell("given up")


def test_a_wait_whose_time_is_up_aborts_the_group(rank_pool):
    rank_pool.run(2, waits_in_vain, env=STRICT)


def begins_after_an_abort(rank, size):
    x = reduced_once(rank)
    if rank == 1:
        backend_of().abort()
        with pytest.raises(dist.DistBackendError, match="rank 1 aborted the group"):
            dist.all_reduce(x)
        tell("aborted")
        return
    hear("aborted")
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
        work.wait(datetime.timedelta(seconds=300))
    with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
        dist.all_reduce(x)  # this rank knows now


def test_a_rank_learns_of_an_abort_from_its_own_operation(rank_pool):
    rank_pool.run(2, begins_after_an_abort, env=STRICT)


def gathers_into_a_list(rank, size):
    """torch's quantization_pertensor_hook of DDP reads the future of all_gather so."""
    torch.accelerator.set_device_index(rank)
    outputs = [torch.empty(3, device="vdev") for _ in range(size)]
    work = dist.all_gather(outputs, torch.full((3,), rank + 1.0, device="vdev"), async_op=True)
    (value,) = work.get_future().wait()
    (result,) = work.result()
    for each in (value, result, torch.stack(outputs)):
        assert each.tolist() == [[1.0] * 3, [2.0] * 3]
    uneven = [torch.empty(2 + other, device="vdev") for other in range(size)]
    work = dist.all_gather(uneven, torch.ones(2 + rank, device="vdev"), async_op=True)
    work.wait()
    assert [tensor.tolist() for tensor in work.result()] == [[1.0] * 2, [1.0] * 3]


def test_all_gather_has_one_tensor_for_a_result(rank_pool):
    rank_pool.run(2, gathers_into_a_list, env=STRICT)
