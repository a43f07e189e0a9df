"""Habits of CUDA scripts at work: streams, mixed precision, autograd, several cards, memory, seeds."""

import gc
import threading
import warnings

import torch
import torch.cuda.comm
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from vccl import _C

# ---- streams


class Gate:
    """Holds a stream back until the block ends or open() is called."""

    def __init__(self, stream):
        self.stream, self.opened = stream, threading.Event()

    def __enter__(self):
        with torch.cuda.stream(self.stream):
            _C.launch_host_func(lambda: self.opened.wait(60))
        return self

    def open(self):
        self.opened.set()

    def __exit__(self, *error):
        self.open()


def probe_streams_are_current_in_their_blocks():
    stream = torch.cuda.Stream()
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream and isinstance(
            torch.cuda.current_stream(), torch.cuda.Stream
        )
    with torch.cuda.stream(torch.cuda.Stream(device=1)) as _:
        assert torch.cuda.current_device() == 1
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_device() == 0
    assert torch.cuda.default_stream().cuda_stream == 0 != stream.cuda_stream
    assert torch.cuda.default_stream(1).device == torch.device("cuda", 1)


def probe_streams_have_priorities():
    low, high = torch.cuda.Stream.priority_range()
    assert (low, high) == (0, -1)
    assert torch.cuda.Stream(priority=-1).priority == -1 and torch.cuda.Stream().priority == 0
    assert torch.cuda.Stream(priority=-5).priority == -1 and torch.cuda.Stream(priority=3).priority == 0


def probe_streams_wait_for_each_other():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    given, taken = torch.full((4,), 3.0).pin_memory(), torch.zeros(4).pin_memory()
    torch.cuda.synchronize()
    with Gate(first) as gate:
        with torch.cuda.stream(first):
            x.copy_(given, non_blocking=True)
            event = first.record_event()
        second.wait_stream(first)
        second.wait_event(event)
        with torch.cuda.stream(second):
            taken.copy_(x, non_blocking=True)
        assert not first.query() and not second.query() and not event.query()
        assert taken.tolist() == [0] * 4
        gate.open()
        second.synchronize()
    assert event.query() and taken.tolist() == [3] * 4


def probe_events_measure_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(10, device="cuda").sum()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    assert torch.cuda.Event(blocking=True).query()


def probe_recorded_memory_is_not_reused_early():
    stream = torch.cuda.Stream()
    x = torch.full((1024,), 3.0, device="cuda")
    taken = torch.zeros(1024).pin_memory()
    torch.cuda.synchronize()
    with Gate(stream):
        with torch.cuda.stream(stream):
            taken.copy_(x, non_blocking=True)
        x.record_stream(stream)
        place = x.data_ptr()
        del x
        assert torch.zeros(1024, device="cuda").data_ptr() != place
    stream.synchronize()
    assert taken.tolist() == [3] * 1024


def probe_another_thread_starts_on_the_first_card():
    seen = []

    def work():
        seen.append(torch.cuda.current_device())
        torch.cuda.set_device(2)
        seen.append(torch.zeros(1, device="cuda").get_device())
        seen.append(torch.cuda.current_stream() == torch.cuda.default_stream(2))

    with torch.cuda.stream(torch.cuda.Stream(device=1)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert torch.cuda.current_device() == 1
    assert seen == [0, 2, True]


def probe_ranges_are_accepted():
    with torch.cuda.nvtx.range("step {}", 3):
        assert torch.cuda.nvtx.range_push("inner") == 1
        torch.cuda.nvtx.mark("here")
        assert torch.cuda.nvtx.range_pop() == 1
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("outer"))


# ---- mixed precision


def probe_autocast_chooses_types():
    x, weight = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda"):
        assert (x @ weight).dtype == torch.float16 and x.exp().dtype == torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype() == torch.bfloat16
        assert F.linear(x, weight).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ weight).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")


def probe_the_old_names_of_amp_work():
    x = torch.randn(4, 4, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.cuda.amp.autocast():
            assert (x @ x).dtype == torch.float16
        scaler = torch.cuda.amp.GradScaler()
    assert scaler.is_enabled()


def probe_a_scaler_skips_what_overflows():
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    before = model.weight.detach().clone()
    for factor, changes in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(torch.ones(2, 4, device="cuda")).sum()
        scaler.scale(loss * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model.weight) != changes
    assert scaler.get_scale() == 512.0


def probe_custom_functions_keep_autocast():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
        def forward(ctx, x):
            assert x.dtype == torch.float16 and not torch.is_autocast_enabled("cuda")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(3, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        Double.apply(x).float().sum().backward()
    assert x.grad.tolist() == [2] * 3


# ---- autograd


def probe_backward_runs_on_the_streams_of_forward():
    seen = []

    class Tell(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(
                (threading.current_thread(), torch.cuda.current_device(), torch.cuda.current_stream())
            )
            return grad

    x = torch.ones(3, device="cuda:1", requires_grad=True)
    stream = torch.cuda.Stream(device=1)
    stream.wait_stream(torch.cuda.current_stream(1))
    with torch.cuda.stream(stream):
        y = Tell.apply(x).sum()
    torch.cuda.current_stream(1).wait_stream(stream)
    y.backward()
    ((thread, card, current),) = seen
    assert thread is not threading.main_thread() and card == 1 and current == stream
    assert x.grad.tolist() == [1] * 3


def probe_hooks_run():
    x = torch.ones(2, device="cuda", requires_grad=True)
    seen = []
    x.register_hook(lambda grad: grad * 3)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.device))
    (x * 2).sum().backward()
    assert x.grad.tolist() == [6, 6] and seen == [torch.device("cuda", 0)]


def probe_checkpoints_recompute():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).cuda()
    grads = []
    for reentrant in (None, False, True):
        torch.manual_seed(1)
        model.zero_grad()
        x = torch.ones(3, 4, device="cuda", requires_grad=True)
        y = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
        y.sum().backward()
        grads.append(x.grad.clone())
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


def probe_functions_are_scripted_traced_and_mapped():
    def f(x):
        return (x * 2).relu() + 1

    x = torch.randn(5, 3, device="cuda")
    assert torch.equal(torch.jit.script(nn.ReLU())(x), x.relu())
    assert torch.equal(torch.jit.trace(f, x)(x), f(x))
    assert torch.equal(torch.vmap(f)(x), f(x))
    grads = torch.func.vmap(torch.func.grad(lambda row: row.square().sum()))(x)
    assert torch.allclose(grads, 2 * x)


def probe_lstms_do_not_warn():
    lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)
    x = torch.randn(2, 3, 4)
    expected, _ = lstm(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lstm.cuda().flatten_parameters()
        result, _ = lstm(x.cuda())
        result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    assert lstm.weight_ih_l0.grad.is_cuda


def probe_training_gives_the_cpus_losses():
    losses = []
    for device, fused in (("cpu", False), ("cuda", False), ("cuda", True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        torch.manual_seed(1)
        x, y = torch.randn(16, 8).to(device), torch.randint(3, (16,)).to(device)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(losses[2], losses[0], rtol=1e-5, atol=0)


# ---- several cards


def probe_data_parallel_gives_one_cards_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).cuda()
    model.eval()  # statistics of a part of the batch would differ
    x = torch.randn(7, 4, device="cuda")
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for forward in (model, nn.DataParallel(model), nn.DataParallel(model, [0, 2])):
            model.zero_grad()
            y = forward(x)
            y.square().sum().backward()
            assert y.device == torch.device("cuda", 0) and y.shape == (7, 2)
            results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def probe_comm_passes_tensors_between_cards():
    comm = torch.cuda.comm
    x = torch.arange(6.0)
    for tensor in (x, x.cuda(1)):
        copies = comm.broadcast(tensor, [0, 1, 2])
        assert [c.get_device() for c in copies] == [0, 1, 2] and all(c.tolist() == x.tolist() for c in copies)
        parts = comm.scatter(tensor, [2, 0], chunk_sizes=[1, 5])
        assert [(p.get_device(), p.tolist()) for p in parts] == [(2, [0]), (0, [1, 2, 3, 4, 5])]
        assert [len(p) for p in comm.scatter(tensor, [0, 1, 2])] == [2, 2, 2]
        assert len(comm.scatter(tensor[:2], [0, 1, 2])) == 2  # no more chunks than rows
    out = [torch.empty(6, device=f"cuda:{i}") for i in range(2)]
    assert comm.broadcast(x, out=out)[1] is out[1] and out[1].tolist() == x.tolist()
    halves = [torch.empty(3, device=f"cuda:{i}") for i in range(2)]
    comm.scatter(x, out=halves)
    assert halves[1].tolist() == [3, 4, 5]
    assert comm.gather(halves).tolist() == x.tolist() and comm.gather(halves).get_device() == 0
    assert comm.gather(halves, destination="cpu").equal(x)
    whole = torch.empty(6, device="cuda:2")
    assert comm.gather(halves, out=whole) is whole and whole.tolist() == x.tolist()
    assert comm.reduce_add(halves, 1).tolist() == [3, 5, 7]
    first, second = comm.broadcast_coalesced([x.cuda(), x.cuda().int()], [0, 1])
    assert [t.get_device() for t in second] == [1, 1] and second[1].dtype == torch.int32
    assert comm.reduce_add_coalesced([first, second], 0)[1].tolist() == [0, 2, 4, 6, 8, 10]
    try:
        comm.gather([torch.ones(2, 2, device="cuda"), torch.ones(2, 3, device="cuda")], 0)
    except RuntimeError as error:
        assert "(2, 3)" in str(error)
    else:
        raise AssertionError("tensors of unequal shapes were gathered")


def probe_comm_keeps_the_order_of_streams():
    x = torch.zeros(4, device="cuda")
    given = torch.ones(4).pin_memory()
    streams = [torch.cuda.Stream(device=i) for i in range(2)]
    torch.cuda.synchronize()
    with Gate(torch.cuda.default_stream(0)) as gate:
        x.copy_(given, non_blocking=True)  # has not run when the broadcast begins
        threading.Timer(0.1, gate.open).start()
        assert torch.cuda.comm.broadcast(x, [0, 1])[1].tolist() == [1] * 4
    with Gate(streams[1]) as gate:
        threading.Timer(0.1, gate.open).start()
        _, part = torch.cuda.comm.scatter(x, [0, 1], streams=streams)
        streams[1].synchronize()
        assert gate.opened.is_set()  # the copy came after what its stream held
    assert part.tolist() == [1] * 2


def probe_nccls_collectives_of_one_process():
    nccl = torch.cuda.nccl
    inputs = [torch.full((3,), i + 1.0, device=f"cuda:{i}") for i in range(3)]
    assert nccl.is_available(inputs) and nccl.version() >= (2, 20)
    outputs = [torch.empty(3, device=t.device) for t in inputs]
    nccl.all_reduce(inputs, outputs)
    assert [t.tolist() for t in outputs] == [[6] * 3] * 3
    nccl.reduce(inputs, output=outputs[1], root=1, op=2)
    assert outputs[1].tolist() == [3] * 3
    wide = [torch.empty(9, device=t.device) for t in inputs]
    nccl.all_gather(inputs, wide)
    assert wide[2].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    narrow = [torch.empty(1, device=t.device) for t in inputs]
    nccl.reduce_scatter(inputs, narrow)
    assert [t.tolist() for t in narrow] == [[6]] * 3
    nccl.broadcast(inputs, root=2)
    assert inputs[0].tolist() == [3] * 3


def probe_cards_copy_to_each_other():
    x = torch.arange(4.0, device="cuda:0")
    assert x.to("cuda:2", non_blocking=True).add(1).tolist() == [1, 2, 3, 4]
    model = nn.Linear(2, 2).cuda().to("cuda:1")
    assert {p.get_device() for p in model.parameters()} == {1}


# ---- memory


def probe_memory_figures_follow_tensors():
    gc.collect()  # else what earlier probes have left in cycles may go in between
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + (1 << 20)
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == before
    assert "CUDA memory summary" in torch.cuda.memory_summary(abbreviated=True)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == 2 << 30


def probe_the_end_of_memory_is_told_as_on_cuda():
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert isinstance(error, RuntimeError)
        assert "CUDA out of memory. Tried to allocate 1024.00 GiB" in str(error), str(error)
    else:
        raise AssertionError("a card has room for 1 TiB")
    torch.cuda.empty_cache()
    assert torch.zeros(1, device="cuda").item() == 0
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the fraction does not limit")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# ---- random numbers


def probe_seeds_give_the_same_numbers():
    def draw():
        return torch.randn(3, device="cuda").tolist()

    torch.manual_seed(3)
    first = draw()
    torch.cuda.manual_seed_all(3)
    assert draw() == first and torch.cuda.initial_seed() == 3
    state = torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == second != first and state.device.type == "cpu"
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 3
    torch.cuda.set_rng_state_all(states)
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert torch.randn(3, device="cuda", generator=generator).tolist() == first
    assert torch.randperm(5, device="cuda", generator=generator).sort().values.tolist() == [0, 1, 2, 3, 4]


def probe_fork_rng_puts_the_state_back():
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="cuda")
        assert not torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def probe_profiles_show_operators():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        torch.ones(3, device="cuda").add(1)
    averages = {event.key: event for event in trace.key_averages()}
    assert averages["aten::add"].self_device_time_total > 0
    assert averages["cudaLaunchKernel"].count == 2
    assert "CUDA total" in trace.key_averages().table(sort_by="cuda_time_total", row_limit=5)
    assert ProfilerActivity.CUDA in torch.profiler.supported_activities()


def probe_profiles_of_the_device_alone():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        torch.ones(3, device="cuda").add(1)
    assert {event.name for event in trace.events()} >= {"aten.add.out", "cudaLaunchKernel"}
