"""torch's profilers on cards: their traces are read back."""

import contextlib

import pytest
import torch
from compiling import compiling
from traces import Trace


def test_ranges_have_times_of_the_card():
    x = torch.ones(200, 200, device="vdev")
    with torch.autograd.profiler.profile(use_device="vdev", use_kineto=False) as profile:
        y = x @ x
        y.sum().item()
    events = {event.key: event for event in profile.key_averages()}
    product = events["aten::mm"]
    assert product.cpu_time_total > 0 and product.device_time_total > 0
    # No range of the host or of the card ends before it begins.
    assert all(event.cpu_time_total >= 0 and event.device_time_total >= 0 for event in events.values())


CPU, CARD = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1
VDEV = torch.autograd.DeviceType.PrivateUse1


@contextlib.contextmanager
def profiled(tmp_path, activities=(CPU, CARD), **options):
    """Profiles the block. The list gets the trace, and then the profiler, at the end."""
    found: list = []
    with torch.profiler.profile(activities=activities, **options) as profiler:
        yield found
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found += [Trace(path), profiler]


def test_operators_and_copies_are_on_the_lanes_of_their_streams(tmp_path):
    x = torch.ones(64, 64, device="vdev")
    host = torch.ones(1000).pin_memory()
    side = torch.Stream(device="vdev")
    with profiled(tmp_path) as found:
        x @ x
        with side:
            x + x
            y = host.to("vdev", non_blocking=True)
        side.synchronize()
        y.cpu()
    trace, _ = found
    # The streams run at the same time, so only the runs of one stream have an order.
    product, down, total, up = sorted(trace.runs(), key=lambda run: run.lane)
    assert [product.name, total.name] == ["aten.mm.out", "aten.add.out"]
    assert (up.name, down.name) == ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)")
    assert product.lane == down.lane == (x.device.index, 0)
    assert total.lane == up.lane == (x.device.index, side.stream_id)
    assert trace.lanes[product.lane] == "stream 0"
    assert trace.lanes[total.lane] == f"stream {side.stream_id}"
    assert trace.processes[x.device.index] == f"vdev:{x.device.index}"
    assert (product.args["device"], total.args["stream"]) == (x.device.index, side.stream_id)
    for copy in (up, down):
        assert copy.category == "gpu_memcpy"
        assert copy.args["bytes"] == 4000
        assert copy.args["memory bandwidth (GB/s)"] == pytest.approx(4000 / copy.duration, rel=0.02, abs=0.01)


def test_an_arrow_goes_from_each_launch_to_its_run(tmp_path):
    x = torch.ones(64, 64, device="vdev", requires_grad=True)
    with profiled(tmp_path) as found:
        (x @ x).sum().backward()
    trace, _ = found
    arrows = trace.arrows()
    assert {run for _, run in arrows} == set(trace.runs()) and len(arrows) == len(trace.runs()) > 4
    operators = {op.args["External id"]: op for op in trace.of("cpu_op")}
    threads = set()
    for launch, run in arrows:
        assert launch.name in (f"{x.device.type}LaunchKernel", f"{x.device.type}MemcpyAsync")
        assert launch.begin <= run.begin
        assert launch.args["correlation"] == run.args["correlation"]
        op = operators[launch.args["External id"]]
        assert run.args["External id"] == op.args["External id"]
        assert launch.lane == op.lane
        # "aten.mm.out" runs for "aten::mm".
        assert run.name.split(".")[:2] == op.name.split("::") or run.category == "gpu_memcpy"
        threads.add(launch.lane)
    assert len(threads) == 2  # autograd's launches the backward


def test_the_time_of_cards_is_credited_to_operators(tmp_path):
    x = torch.ones(64, 64, device="vdev")
    with profiled(tmp_path) as found:
        for _ in range(3):
            x @ x
            x.sum()  # has three ranges of that name, one in the other
    trace, profiler = found
    products = trace.runs("aten.mm")
    assert len(products) == 3
    microseconds = pytest.approx(sum(run.duration for run in products) / 1000, abs=0.1)
    averages = {(event.key, event.device_type): event for event in profiler.key_averages()}
    host = averages["aten::mm", torch.autograd.DeviceType.CPU]
    card = averages["aten.mm.out", VDEV]
    assert host.self_device_time_total == host.device_time_total == microseconds
    assert card.self_device_time_total == microseconds
    assert card.count == 3 and card.self_cpu_time_total == 0
    totals = averages["aten::sum", torch.autograd.DeviceType.CPU]
    assert totals.device_time_total == averages["aten.sum.IntList_out", VDEV].device_time_total
    assert f"{x.device.type.upper()} time total" in profiler.key_averages().table()


def test_steps_are_on_the_lanes_too(tmp_path):
    x = torch.ones(32, 32, device="vdev", requires_grad=True)
    traces = []

    def export(profiler):
        profiler.export_chrome_trace(str(tmp_path / "steps.json"))
        traces.append(Trace(tmp_path / "steps.json"))

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(activities=[CPU, CARD], schedule=schedule, on_trace_ready=export) as profiler:
        for _ in range(5):
            with torch.profiler.record_function("forward"):
                y = (x @ x).sum()
            y.backward()
            profiler.step()
    (trace,) = traces
    steps = trace.of("gpu_user_annotation")
    assert [step.name for step in steps if step.name != "forward"] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert [step.name for step in steps if step.name == "forward"] == ["forward"] * 2
    assert {step.lane for step in steps} == {(x.device.index, 0)}
    products = trace.runs("aten.mm")
    assert len(products) == 6  # one forward, two backward
    for i, step in enumerate(step for step in steps if step.name != "forward"):
        assert [step.encloses(run) for run in products] == [i == 0] * 3 + [i == 1] * 3


def test_memory_of_the_card_is_in_the_trace(tmp_path):
    with profiled(tmp_path, profile_memory=True) as found:
        x = torch.ones(1 << 20, device="vdev")
        del x
    trace, profiler = found
    changes = [event["args"] for event in trace.events if event["name"] == "[memory]"]
    assert [change["Bytes"] for change in changes if change["Device Type"] == VDEV.value] == [
        1 << 22,
        -(1 << 22),
    ]
    averages = {event.key: event for event in profiler.key_averages()}
    assert averages["aten::empty"].self_device_memory_usage == 1 << 22


def test_a_profile_of_the_cards_alone(tmp_path):
    x = torch.ones(8, device="vdev")
    with profiled(tmp_path, activities=[CARD]) as found:
        x + x
    trace, _ = found
    assert [run.name for run in trace.runs()] == ["aten.add.out"]
    assert trace.of("cpu_op") == []


def test_a_profile_of_copies_alone(tmp_path):
    x = torch.ones(8, device="vdev")
    with profiled(tmp_path, activities=[{CPU: ["CPU_OP"], CARD: ["GPU_MEMCPY"]}]) as found:
        (x + x).cpu()
    trace, _ = found
    assert [run.category for run in trace.runs()] == ["gpu_memcpy"]
    assert trace.arrows() == [] and trace.of("privateuse1_runtime", "cuda_runtime") == []


def test_a_profile_of_the_host_alone_has_nothing_of_the_cards(tmp_path):
    x = torch.ones(8, device="vdev")
    with profiled(tmp_path, activities=[CPU]) as found:
        (x + x).cpu()
    trace, profiler = found
    assert "aten::add" in {event.key for event in profiler.key_averages()}
    assert trace.runs() == [] and trace.of("privateuse1_runtime", "cuda_runtime") == []


def test_several_cards_are_in_one_trace(tmp_path):
    x = torch.ones(16, device="vdev:0")
    with profiled(tmp_path) as found:
        y = x.to("vdev:1")
        y + y
    trace, _ = found
    copy, total = trace.runs()
    assert copy.name == "Memcpy PtoP (Device -> Device)"
    assert (copy.lane[0], total.lane[0]) == (0, 1)
    assert (trace.processes[0], trace.processes[1]) == ("vdev:0", "vdev:1")
    assert {0, 1} <= {card["id"] for card in trace.content["deviceProperties"]}


def test_a_replay_is_one_run_with_its_tasks_in_it(tmp_path):
    x = torch.ones(16, device="vdev")
    stream = torch.Stream(device="vdev")
    graph = torch.accelerator.Graph()
    pinned = torch.ones(16).pin_memory()
    with stream:
        graph.capture_begin()
        x.copy_(pinned, non_blocking=True)
        graph.capture_end()
    with profiled(tmp_path) as found:
        graph.replay()
    trace, _ = found
    replay, copy = trace.runs()
    assert replay.name == "graph replay" and replay.encloses(copy) and replay.lane == copy.lane
    assert copy.name == "Memcpy HtoD (Pinned -> Device)" and copy.args["bytes"] == 64
    ((launch, run),) = trace.arrows()
    assert run == replay
    assert launch.name == f"{x.device.type}GraphLaunch"


def test_kernels_of_vccl_have_their_names(tmp_path):
    x = torch.ones(64, device="vdev")
    with profiled(tmp_path) as found:
        torch.nn.functional.dropout(x)
    trace, _ = found
    assert [run.name for run in trace.runs("vccl.dropout_forward")] == ["vccl.dropout_forward"]


def test_kernels_of_compiled_code_have_their_names(tmp_path):
    x = torch.randn(64, 64, device="vdev")
    with compiling():
        compiled = torch.compile(lambda x: (x * 2 + 1).relu() @ x)
        compiled(x)
        with profiled(tmp_path) as found:
            compiled(x)
    trace, profiler = found
    generated, product = trace.runs()
    assert generated.name.startswith("cpp_fused_") and product.name == "aten.mm.out"
    assert generated in [run for _, run in trace.arrows()]
    assert generated.end <= product.begin
    regions = [event for event in profiler.key_averages() if event.key.startswith("Torch-Compiled Region")]
    assert regions and all(event.device_time_total > 0 for event in regions)


def test_one_profile_follows_another(tmp_path):
    x = torch.ones(8, device="vdev")
    for _ in range(2):
        with profiled(tmp_path) as found:
            x + x
        assert [run.name for run in found[0].runs()] == ["aten.add.out"]
        x * x


def test_a_trace_that_is_full_says_what_it_lacks(run_python):
    result = run_python(
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "x = torch.ones(8, device='vdev')\n"
        "with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:\n"
        "    for _ in range(5): x + x\n"
        "kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]\n"
        "assert len(kernels) == 3, kernels\n",
        VDEV_PROFILER_ACTIVITIES="3",
    )
    assert "lacks the last 2 activities" in result.stderr
