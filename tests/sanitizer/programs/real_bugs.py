"""Bugs that stood for months in public code, made small. Each names where it was found."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from pairs import LARGE, current, pinned, racing, side_stream, wait_without_order, zeros


@racing("read after write", r"must wait for")
def a_stager_copies_before_its_stream_waits(repaired: bool) -> None:
    """torch.distributed.checkpoint.staging.DefaultStager: a thread copies on a stream of its own, which
    does not wait for the stream on which the program has just made a step."""
    weight = zeros()
    staging = torch.vdev.Stream()
    with ThreadPoolExecutor(1) as pool:

        def stage() -> torch.Tensor:
            with torch.vdev.stream(staging):
                copy = weight.to("cpu", non_blocking=True)  # second
            staging.synchronize()
            return copy

        torch.accelerator.synchronize()
        weight.add_(1)  # first
        if repaired:
            staging.wait_stream(current())
        pool.submit(stage).result()


@racing("write after read", r"must wait for|order the two|record_stream")
def the_next_step_changes_weights_that_are_staged(repaired: bool) -> None:
    """The other half of the stager: the next step does not wait for the staging of the last one."""
    weight, staged = zeros(), []
    staging = side_stream()

    def stage() -> None:
        with torch.vdev.stream(staging):
            weight.to("cpu", non_blocking=True)  # first
        staging.synchronize()
        staged.append(True)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(stage)
        wait_without_order(staged)
        if repaired:
            future.result()
        weight.add_(1)  # second


@racing("read after write", r"the host must wait for .*synchronize\(\)")
def a_scaler_reads_found_inf_on_the_cpu_too_early(repaired: bool) -> None:
    """torch.amp.GradScaler with gradients on the CPU: the replica of the scale on the CPU is made by a
    copy that is not blocking, and the CPU's kernel multiplies by it at once."""
    inverse = zeros(1)
    inverse.fill_(0.25)
    on_cpu = inverse.to("cpu", non_blocking=True)  # first
    gradients, found = [torch.ones(8)], torch.zeros(1)
    if repaired:
        current().synchronize()
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, on_cpu)  # second


@racing("read after write", r"wait_stream|must wait for")
def a_hook_waits_for_the_wrong_stream(repaired: bool) -> None:
    """A communication hook takes the stream that is current where it is made, and not where it is called."""
    gradient = zeros()
    communication = torch.vdev.Stream()
    captured = current()

    def hook(bucket: torch.Tensor) -> None:
        communication.wait_stream(current() if repaired else captured)
        with torch.vdev.stream(communication):
            bucket.div(2)  # second

    with torch.vdev.stream(side_stream()):
        gradient.fill_(4)  # first
        hook(gradient)


@racing("write after read", r"wait_stream|must wait for")
def an_async_tp_buffer_is_overwritten_by_the_next_chunk(repaired: bool) -> None:
    """pytorch#137171: two streams take turns with two halves of a buffer that peers read, and a stream
    writes the next chunk into a half that the other one's copy still reads."""
    buffer, chunks, out = zeros(2, 64), [zeros(64) for _ in range(3)], zeros(3, 64)
    compute, backend = side_stream(), side_stream()
    with torch.vdev.stream(compute):
        buffer[0].copy_(chunks[0])
    backend.wait_stream(compute)
    with torch.vdev.stream(backend):
        out[0].copy_(buffer[0])  # first
    with torch.vdev.stream(compute):
        buffer[1].copy_(chunks[1])
    if repaired:
        compute.wait_stream(backend)
    with torch.vdev.stream(compute):
        buffer[0].copy_(chunks[2])  # second


@racing("read after write", r"wait_stream|must wait for")
def threads_as_ranks_copy_on_the_first_ranks_stream(repaired: bool) -> None:
    """pytorch#195281: a group whose ranks are threads moves all data on the stream of rank 0, which does
    not wait for the streams on which the others have made theirs. The threads themselves meet in order."""
    inputs, output = [zeros(16), zeros(16)], zeros(32)
    streams = [side_stream(), side_stream()]
    events: list[torch.vdev.Event] = []
    meet = threading.Barrier(2)

    def other_rank() -> None:
        with torch.vdev.stream(streams[1]):
            inputs[1].fill_(1)  # first
            events.append(streams[1].record_event())
        meet.wait(60)
        meet.wait(60)

    thread = threading.Thread(target=other_rank)
    thread.start()
    meet.wait(60)
    if repaired:
        streams[0].wait_event(events[0])
    with torch.vdev.stream(streams[0]):
        torch.cat(inputs, out=output)  # second
    meet.wait(60)
    thread.join()


@racing("use after free", r"record_stream")
def a_gathered_gradient_is_freed_before_it_is_accumulated(repaired: bool) -> None:
    """pytorch#181218: FSDP2 accumulates a reduced gradient on the stream of the reduction, while the next
    chunk's backward gets the memory of its input on the default stream."""
    gradient, total = torch.zeros(LARGE, device="vdev"), torch.zeros(LARGE, device="vdev")
    reduction = side_stream()
    with torch.vdev.stream(reduction):
        total.add_(gradient)  # first
        done = reduction.record_event()
    if repaired:
        current().wait_event(done)
    del gradient
    torch.ones(LARGE, device="vdev")  # second


@racing("use after free", r"record_stream")
def an_offloaded_gradient_is_given_out_again(repaired: bool) -> None:
    """pytorch#180665: HSDP allocates the reduced gradient on the stream of the reduce-scatter, downloads
    it on the stream of the all-reduce, and drops it."""
    scatter, reduce = side_stream(), side_stream()
    host = pinned(LARGE)
    with torch.vdev.stream(scatter):
        reduced = torch.zeros(LARGE, device="vdev")
    reduce.wait_stream(scatter)
    with torch.vdev.stream(reduce):
        host.copy_(reduced, non_blocking=True)  # first
    kept = reduced if repaired else None
    del reduced
    with torch.vdev.stream(scatter):
        torch.ones(LARGE, device="vdev")  # second
    reduce.synchronize()
    del kept


@racing("read after write", r"wait_stream|must wait for")
def an_all_gather_reads_what_is_still_resharded(repaired: bool) -> None:
    """pytorch#197827: parameters are resharded on the current stream, and copied in on the stream of the
    gather."""
    full = zeros(64)
    copy_in = side_stream()
    shard = full[:32].clone()  # first
    if repaired:
        copy_in.wait_stream(current())
    with torch.vdev.stream(copy_in):
        torch.cat([shard])  # second


@racing("read after write", r"wait_stream|must wait for")
def a_stream_context_is_taken_for_an_order(repaired: bool) -> None:
    """pytorch#195798: leaving the context of a stream orders nothing. A comparison reads on the ambient
    stream."""
    x = zeros()
    s0, s2 = side_stream(), side_stream()
    with s0:
        z = x + 1  # first
    if repaired:
        s2.wait_stream(s0)
    with s2:
        z.mul(2)  # second


@racing("read after write", r"the host must wait for .*synchronize\(\)")
def consolidated_states_are_read_too_early(repaired: bool) -> None:
    """torch.distributed.optim.ZeroRedundancyOptimizer.consolidate_state_dict() copies states without
    blocking."""
    momentum = zeros(16)
    states = {"momentum": momentum.to("cpu", non_blocking=True)}  # first
    if repaired:
        torch.accelerator.synchronize()
    {name: state.clone() for name, state in states.items()}  # second


@racing("write after read", r"the host must wait for .*synchronize\(\)")
def a_partition_is_swapped_out_of_a_buffer_that_is_filled_again(repaired: bool) -> None:
    """The swapper of an offloading engine reuses one pinned buffer for all partitions, and waits for none."""
    buffer, partitions = pinned(), [torch.ones(256), torch.ones(256)]
    buffer.copy_(partitions[0])
    buffer.to("vdev", non_blocking=True)  # first
    if repaired:
        current().record_event().synchronize()
    buffer.copy_(partitions[1])  # second


@racing("read after write", r"wait_stream|must wait for")
def a_pipelined_input_distribution_is_used_without_its_event(repaired: bool) -> None:
    """As in training pipelines of recommenders: the next batch is prepared on streams of its own, with an
    event for each stage, and one stage is not waited for."""
    copy, distribute = side_stream(), side_stream()
    host = pinned()
    with torch.vdev.stream(copy):
        batch = host.to("vdev", non_blocking=True)
    distribute.wait_stream(copy)
    with torch.vdev.stream(distribute):
        lengths = batch.cumsum(0)  # first
    current().wait_stream(distribute if repaired else copy)
    lengths.sum()  # second
    torch.accelerator.synchronize()


@racing("write after read", r"the host must wait for .*synchronize\(\)")
def weights_for_generation_are_overwritten_in_a_shared_buffer(repaired: bool) -> None:
    """As in engines for reinforcement learning: buckets of weights go through two host buffers to the
    generator."""
    buckets, stream = [pinned(), pinned()], side_stream()
    events = []
    with torch.vdev.stream(stream):
        for bucket in buckets:
            bucket.to("vdev", non_blocking=True)  # first
            events.append(stream.record_event())
    events[1 if repaired else 0].synchronize()
    buckets[1].fill_(3)  # second
