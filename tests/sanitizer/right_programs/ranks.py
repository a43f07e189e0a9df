"""Right programs of two ranks, for which no report may come: torch's ways to parallelise a model."""

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from newer_names import all_gather_single, reduce_scatter_single
from pairs import current, side_stream, zeros
from right import STEPS, WIDTH, Block, adam, batch, make_model, right, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer, _apply_optimizer_in_backward
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


@right(2)
def ddp() -> None:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
    train(model, adam(model))


@right(2)
def ddp_with_a_static_graph() -> None:
    model = DistributedDataParallel(make_model(), static_graph=True, gradient_as_bucket_view=True)
    train(model, adam(model, fused=True))


@right(2)
def ddp_without_synchronisation_in_between() -> None:
    model = DistributedDataParallel(make_model())
    optimizer = adam(model)
    for step in range(STEPS):
        with model.no_sync():
            model(batch(step).to("vdev")).sum().backward()
        model(batch(step + 9).to("vdev")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@right(2)
def ddp_with_hooks_of_torch() -> None:
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        model = DistributedDataParallel(make_model(1))
        model.register_comm_hook(None, hook)
        train(model, adam(model))


@right(2)
def ddp_with_power_sgd() -> None:
    model = DistributedDataParallel(make_model(1))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, adam(model))


@right(2)
def ddp_with_a_hook_that_has_a_stream() -> None:
    model = DistributedDataParallel(make_model(1))
    side = torch.vdev.Stream()

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        side.wait_stream(current())
        with torch.vdev.stream(side):
            bucket.buffer().div_(dist.get_world_size())
            work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    train(model, adam(model))


def shard(model: nn.Module, **options: object) -> nn.Module:
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


@right(2)
def fsdp2() -> None:
    model = shard(make_model())
    train(model, adam(model))


@right(2)
def fsdp2_with_prefetch() -> None:
    model = shard(make_model(4))
    blocks = list(model)
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - 2) : i][::-1])
    train(model, adam(model))


@right(2)
def fsdp2_with_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(make_model(), mp_policy=policy, reshard_after_forward=False)
    train(model, adam(model))


@right(2)
def fsdp2_with_offload() -> None:
    model = shard(make_model(device="cpu"), offload_policy=CPUOffloadPolicy())
    train(model, adam(model))


@right(2)
def fsdp2_with_accumulation() -> None:
    model = shard(make_model())
    optimizer = adam(model)
    for step in range(4):
        model.set_requires_gradient_sync(step % 2 == 1)
        model(batch(step).to("vdev")).square().mean().backward()
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


@right(2)
def hsdp() -> None:
    mesh = init_device_mesh("vdev", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = shard(make_model(), mesh=mesh)
    train(model, adam(model))


@right(2)
def fsdp1() -> None:
    model = FullyShardedDataParallel(
        make_model(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=True,
        forward_prefetch=True,
        device_id=torch.vdev.current_device(),
    )
    train(model, adam(model))


@right(2)
def fsdp1_with_mixed_precision_and_clipping() -> None:
    precision = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    model = FullyShardedDataParallel(
        make_model(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=precision,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        limit_all_gathers=True,
        device_id=torch.vdev.current_device(),
    )
    optimizer = adam(model)
    for step in range(STEPS):
        model(batch(step).to("vdev")).float().square().mean().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


@right(2)
def zero() -> None:
    model = DistributedDataParallel(make_model())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


@right(2)
def tensor_parallelism_with_sequences() -> None:
    mesh = init_device_mesh("vdev", (2,))
    model = make_model(2)
    for block in model:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(block, mesh, plan)
    train(model, adam(model, foreach=False))


@right(2)
def tensor_parallelism() -> None:
    mesh = init_device_mesh("vdev", (2,))
    model = make_model(2)
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, adam(model, foreach=False))


@right(2)
def overlapped_gathers_by_hand() -> None:
    """A buffer for each of two layers, gathered on a stream of its own, one layer ahead."""
    shards, full = [zeros(8, WIDTH) for _ in range(4)], [zeros(16, WIDTH) for _ in range(2)]
    gather, free, ready = side_stream(), [None, None], [None, None]
    x = zeros(4, WIDTH)

    def prefetch(layer: int) -> None:
        which = layer % 2
        if free[which] is not None:
            gather.wait_event(free[which])
        with torch.vdev.stream(gather):
            all_gather_single(full[which], shards[layer])
            ready[which] = gather.record_event()

    prefetch(0)
    for layer in range(4):
        if layer < 3:
            prefetch(layer + 1)
        current().wait_event(ready[layer % 2])
        x = x @ full[layer % 2]
        free[layer % 2] = current().record_event()
    x.sum().item()


@right(2)
def collectives_and_messages_that_are_waited_for() -> None:
    peer = 1 - dist.get_rank()
    for _ in range(3):
        x, parts, out = zeros(), zeros(512), zeros()
        dist.all_reduce(x)
        all_gather_single(parts, x, async_op=True).wait()
        reduce_scatter_single(out, parts)
        messages = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, x, peer)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        dist.broadcast(x, 0)
        dist.barrier()
        x.sum().item()


@right(2)
def the_input_of_an_asynchronous_collective_may_be_read() -> None:
    x, out = zeros(), zeros(512)
    work = all_gather_single(out, x, async_op=True)
    x.sum()
    work.wait()
    out.sum()


@right(2)
def a_dead_input_of_an_asynchronous_collective() -> None:
    """The group keeps the memory of tensors that the program has dropped."""
    for _ in range(3):
        out = torch.zeros(2 << 20, device="vdev")
        work = all_gather_single(out, torch.ones(1 << 20, device="vdev"), async_op=True)
        torch.zeros(1 << 20, device="vdev")
        work.wait()
        out.sum()


@right(2)
def tensors_of_the_cpu() -> None:
    for _ in range(3):
        x = torch.ones(64)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert x.sum().item() == 128
        dist.all_reduce(x)
        x.add_(1)


@right(2)
def objects() -> None:
    things: list = [None, None]
    dist.all_gather_object(things, {"rank": dist.get_rank()})
    dist.broadcast_object_list(things, 0)


@right(2)
def compiled_ddp() -> None:
    model = DistributedDataParallel(make_model(1))
    train(torch.compile(model, backend="aot_eager"), adam(model))


@right(2)
def hooks_on_gradients() -> None:
    model = make_model(2)
    works: list[dist.Work] = []

    def reduce(parameter: nn.Parameter, works: list[dist.Work]) -> None:
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(functools.partial(reduce, works=works))
    optimizer = adam(model)
    for step in range(STEPS):
        model(batch(step).to("vdev")).square().mean().backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
        optimizer.zero_grad()


@right(2)
def a_collective_is_asked_until_it_is_over() -> None:
    """As with NCCL, is_completed() says yes when the card has run the collective."""
    x = zeros()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    x.sum()


@right(2)
def functional_collectives() -> None:
    x = zeros()
    for _ in range(3):
        reduced = funcol.all_reduce(x, "sum", dist.group.WORLD)
        x.copy_(reduced + 1)
        funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum().item()


@right(2)
def the_host_synchronises_after_a_collective() -> None:
    x = zeros()
    work = dist.all_reduce(x, async_op=True)
    torch.accelerator.synchronize()
    x.sum()
    work.wait()


@right(2)
def synchronised_batch_normalisation() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).to("vdev")
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    train(model, adam(model))


@right(2)
def ddp_with_a_join() -> None:
    model = DistributedDataParallel(make_model(1))
    with model.join():
        train(model, adam(model), STEPS + dist.get_rank())


@right(2)
def ddp_with_an_optimizer_in_the_backward_pass() -> None:
    net = make_model()
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    model = DistributedDataParallel(net)
    for step in range(STEPS):
        inputs = batch(step).pin_memory().to("vdev", non_blocking=True)
        model(inputs).square().mean().backward()
