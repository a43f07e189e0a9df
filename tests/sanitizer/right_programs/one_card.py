"""Right programs of one process, for which no report may come."""

import asyncio
import queue
import threading
from collections.abc import Callable
from multiprocessing.pool import ThreadPool

import torch
from pairs import LARGE, current, pinned, side_stream, zeros
from right import Block, adam, batch, make_model, right, train
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


@right()
def training() -> None:
    model = make_model()
    train(model, adam(model))


@right()
def training_with_a_fused_optimizer() -> None:
    model = make_model()
    train(model, adam(model, fused=True))


@right()
def mixed_precision_with_a_scaler() -> None:
    model = make_model()
    optimizer, scaler = adam(model), torch.amp.GradScaler("vdev")
    for step in range(3):
        inputs = batch(step).pin_memory().to("vdev", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("vdev", dtype=torch.float16):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@right()
def activation_checkpointing() -> None:
    for reentrant in (False, True):
        model = make_model()
        optimizer = adam(model)
        for step in range(3):
            x = batch(step).to("vdev").requires_grad_()
            for block in model:
                x = checkpoint(block, x, use_reentrant=reentrant)
            x.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@right()
def saved_tensors_on_the_cpu() -> None:
    model = make_model()
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="vdev"):
        model(batch().to("vdev")).square().mean().backward()


@right()
def a_loader_with_pinned_memory() -> None:
    model = make_model()
    optimizer = adam(model)
    loader = DataLoader(TensorDataset(torch.randn(32, 16)), batch_size=8, pin_memory=True)
    for _ in range(2):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs.to("vdev", non_blocking=True)).square().mean().backward()
            optimizer.step()


@right()
def the_usual_prefetcher() -> None:
    loader, model = torch.vdev.Stream(), make_model()

    def preload(step: int) -> torch.Tensor:
        with torch.vdev.stream(loader):
            return batch(step).pin_memory().to("vdev", non_blocking=True).float()

    ready = preload(0)
    for step in range(4):
        current().wait_stream(loader)
        inputs = ready
        inputs.record_stream(current())
        ready = preload(step + 1)
        model(inputs).sum().item()
    torch.accelerator.synchronize()


@right()
def double_buffers_of_pinned_memory() -> None:
    buffers, events = [pinned(LARGE), pinned(LARGE)], [None, None]
    upload = torch.vdev.Stream()
    for step in range(6):
        which = step % 2
        if events[which] is not None:
            events[which].synchronize()
        buffers[which].fill_(step)
        with torch.vdev.stream(upload):
            x = buffers[which].to("vdev", non_blocking=True)
            events[which] = upload.record_event()
        current().wait_stream(upload)
        x.record_stream(current())
        x.add_(1)
    torch.accelerator.synchronize()


@right()
def pageable_memory_may_be_refilled_at_once() -> None:
    host = torch.zeros(256)
    for step in range(3):
        host.fill_(step)
        host.to("vdev", non_blocking=True)
    torch.accelerator.synchronize()


@right()
def pinned_memory_that_is_copied_transposed_may_be_refilled_at_once() -> None:
    """The call makes a contiguous temporary of it, as on CUDA."""
    host, x = torch.zeros(16, 16).pin_memory(), zeros(16, 16)
    for step in range(3):
        host.fill_(step)
        x.copy_(host.t(), non_blocking=True)
    torch.accelerator.synchronize()


@right()
def two_streams_read() -> None:
    x = zeros()
    for _ in range(3):
        with torch.vdev.stream(side_stream()):
            x.sum()
    x.mean()


@right()
def streams_work_on_columns_of_their_own() -> None:
    x = zeros(16, 12)
    streams = [side_stream() for _ in range(3)]
    for i, stream in enumerate(streams):
        with torch.vdev.stream(stream):
            x[:, i::3].add_(i)
    for stream in streams:
        current().wait_stream(stream)
    x.sum()


@right()
def memory_goes_back_and_forth() -> None:
    side = torch.vdev.Stream()
    for _ in range(6):
        x = torch.zeros(LARGE, device="vdev")
        side.wait_stream(current())
        with torch.vdev.stream(side):
            y = x * 2
        x.record_stream(side)
        del x
        current().wait_stream(side)
        y.record_stream(current())
        y.sum()
        del y


@right()
def a_ring_of_events() -> None:
    buffers = [zeros() for _ in range(2)]
    full, empty = [torch.vdev.Event() for _ in range(2)], [torch.vdev.Event() for _ in range(2)]
    producer, consumer = side_stream(), side_stream()
    for step in range(6):
        which = step % 2
        producer.wait_event(empty[which])
        with torch.vdev.stream(producer):
            buffers[which].fill_(step)
        full[which].record(producer)
        consumer.wait_event(full[which])
        with torch.vdev.stream(consumer):
            buffers[which].sum()
        empty[which].record(consumer)


@right()
def an_event_that_is_recorded_again_keeps_the_wait_before() -> None:
    x = zeros()
    side, event = side_stream(), torch.vdev.Event()
    with torch.vdev.stream(side):
        x.add_(1)
    event.record(side)
    current().wait_event(event)
    event.record(side_stream())
    x.sum()


@right()
def a_backward_pass_follows_the_streams_of_the_forward() -> None:
    side = side_stream()
    left, right_block = Block().to("vdev"), Block().to("vdev")
    side.wait_stream(current())
    inputs = batch().to("vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        half = left(inputs)
    other = right_block(inputs)
    current().wait_stream(side)
    (half + other).sum().backward()
    for parameter in [*left.parameters(), *right_block.parameters()]:
        parameter.grad.sum()
    torch.accelerator.synchronize()


@right()
def a_whole_step_on_a_side_stream() -> None:
    side = side_stream()
    with torch.vdev.stream(side):
        model = make_model()
        train(model, adam(model))
    current().wait_stream(side)
    for parameter in model.parameters():
        parameter.grad.sum()


@right()
def a_captured_step() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = batch().to("vdev")
    warmup = side_stream()
    with torch.vdev.stream(warmup):
        for _ in range(2):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    current().wait_stream(warmup)
    graph = torch.vdev.VDEVGraph()
    optimizer.zero_grad()
    with torch.vdev.graph(graph):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    for step in range(3):
        inputs.copy_(batch(step))
        graph.replay()
        loss.item()


@right()
def one_graph_on_two_streams() -> None:
    """Replays of one graph are in order, whatever their streams."""
    x, y = zeros(), zeros()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        torch.mul(x, 2, out=y)
    for stream in (side_stream(), side_stream()):
        with torch.vdev.stream(stream):
            graph.replay()
    torch.accelerator.synchronize()


@right()
def compiled_training() -> None:
    model = make_model(1)
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, adam(model))


@right()
def a_queue_hands_batches_with_their_events() -> None:
    items: queue.Queue = queue.Queue(2)

    def load() -> None:
        stream = torch.vdev.Stream()
        for step in range(4):
            with torch.vdev.stream(stream):
                x = batch(step).pin_memory().to("vdev", non_blocking=True)
            items.put((x, stream.record_event()))
        items.put(None)

    thread = threading.Thread(target=load)
    thread.start()
    model = make_model(1)
    while (item := items.get()) is not None:
        x, event = item
        current().wait_event(event)
        x.record_stream(current())
        model(x).sum().item()
        del x, item
    thread.join()
    torch.accelerator.synchronize()


@right()
def copies_between_cards() -> None:
    x = zeros(64)
    for _ in range(3):
        y = x.to("vdev:1")
        y.add_(1)
        x.copy_(y)
    x.sum().item()


@right()
def a_module_over_two_cards() -> None:
    first, second = Block().to("vdev:0"), Block().to("vdev:1")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    for step in range(3):
        optimizer.zero_grad()
        second(first(batch(step).to("vdev:0")).to("vdev:1")).square().mean().backward()
        optimizer.step()


@right()
def a_download_is_polled() -> None:
    x, host = zeros(), pinned()
    host.copy_(x, non_blocking=True)
    event = current().record_event()
    while not event.query():
        pass
    host.sum()


@right()
def saving_and_loading() -> None:
    import io

    model = make_model(1)
    optimizer = adam(model)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    states = torch.load(file)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    train(model, optimizer)


@right()
def operators_that_wait_for_elements() -> None:
    """They return what the host has to know, so the host waits for the current stream."""
    for waits in (
        torch.nonzero,
        torch.unique,
        torch.Tensor.tolist,
        lambda x: x[x > 0],
        lambda x: x[0].item(),
    ):
        x = zeros()
        with torch.vdev.stream(side_stream()):
            x.add_(1)
            waits(x)
        x.sum()


@right()
def pinned_memory_dies_and_is_given_out_again() -> None:
    """The allocator of pinned memory waits for the copies that use it."""
    x = zeros(LARGE)
    for step in range(4):
        host = pinned(LARGE)
        host.fill_(step)
        x.copy_(host, non_blocking=True)
        del host
        x.to("cpu", non_blocking=True)
    torch.accelerator.synchronize()


@right()
def threads_are_ordered_by_what_python_has() -> None:
    """Semaphores, barriers, pools of threads, other queues, timers and coroutines."""
    semaphore, barrier, items = threading.Semaphore(0), threading.Barrier(2), queue.LifoQueue()
    ways = (
        (semaphore.release, semaphore.acquire),
        (barrier.wait, barrier.wait),
        (lambda: items.put(0), items.get),
    )
    for tell, hear in ways:
        x = zeros()
        work = synchronised_work(x)

        def in_thread(work: Callable[[], None] = work, tell: Callable[[], object] = tell) -> None:
            work()
            tell()

        thread = threading.Thread(target=in_thread)
        thread.start()
        hear()
        x.sum()
        thread.join()
    x = zeros()
    timer = threading.Timer(0, synchronised_work(x))
    timer.start()
    timer.join()
    x.sum()
    with ThreadPool(2) as pool:
        y = zeros()
        pool.apply(synchronised_work(y))
        y.sum()
    asyncio.run(in_a_coroutine(zeros()))


async def in_a_coroutine(x: torch.Tensor) -> None:
    await asyncio.to_thread(synchronised_work(x))
    x.sum()


def synchronised_work(x: torch.Tensor) -> Callable[[], None]:
    """Returns a function that writes x on a stream of its own, and waits for that."""
    side = side_stream()

    def work() -> None:
        with torch.vdev.stream(side):
            x.add_(1)
        side.synchronize()

    return work


@right()
def operators_that_make_random_numbers() -> None:
    """Two streams may draw from one generator: the host gives out the numbers' places."""
    torch.randn(8, device="vdev")
    with torch.vdev.stream(side_stream()):
        torch.nn.functional.dropout(zeros())
    torch.rand(8, device="vdev")


@right()
def released_memory_is_allocated_again() -> None:
    """To give memory back to the driver waits for the card."""
    x = torch.zeros(LARGE, device="vdev")
    with torch.vdev.stream(side_stream()):
        x.sum()
    del x
    torch.vdev.empty_cache()
    torch.zeros(LARGE, device="vdev")


@right()
def a_tensor_goes_to_the_host_and_comes_back() -> None:
    """Both copies are on one stream, so the host does not have to wait in between."""
    x = zeros()
    host = x.to("cpu", non_blocking=True)
    host.to("vdev", non_blocking=True).sum()
    torch.accelerator.synchronize()


@right()
def a_module_goes_to_the_host_and_comes_back() -> None:
    model = make_model(1)
    model.to("cpu", non_blocking=True)
    model.to("vdev", non_blocking=True)
    model(batch().to("vdev")).sum().item()


@right()
def forms_of_sparse_and_nested_tensors_are_looked_at_during_a_copy() -> None:
    indices, values = torch.arange(8)[None], torch.ones(8)
    sparse = torch.sparse_coo_tensor(indices, values, (9,), check_invariants=False).to("vdev")
    rows = torch.ones(4, 4).to_sparse_csr().to("vdev")
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)]).to("vdev")
    host = sparse.to("cpu", non_blocking=True)
    torch.sparse_coo_tensor(host._indices(), host._values(), host.shape, check_invariants=False)
    assert (host._nnz(), host.sparse_dim(), host.is_coalesced()) == (8, 1, False)
    host = rows.to("cpu", non_blocking=True)
    assert (host._nnz(), host.values().shape) == (16, (16,))
    assert nested.to("cpu", non_blocking=True).size(0) == 2
    flat = pinned(4)
    flat.copy_(torch.ones(4, device="vdev"), non_blocking=True)
    assert flat.unsqueeze_(0).t_().squeeze_(1).shape == (4,)
