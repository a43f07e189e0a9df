"""Kernels in CUDA C++ on cards: cuda_kernels.cu, compiled as an extension, against torch's operators."""

import ctypes
import functools
import tempfile
from pathlib import Path

import torch
from probes import FOLDER
from torch.utils import cpp_extension

from vccl import _C

INVALID_VALUE, INVALID_CONFIGURATION = 1, 9


@functools.cache
def library():
    with tempfile.TemporaryDirectory() as folder:
        path = cpp_extension.load(
            "cuda_kernels",
            [str(FOLDER / "cuda_kernels.cu")],
            extra_cuda_cflags=[
                "-O2",
                "--use_fast_math",
                "-gencode=arch=compute_80,code=sm_80",
                "-Xptxas",
                "-v",
            ],
            build_directory=folder,
            is_python_module=False,
        )
        return ctypes.CDLL(path)


def run(name, *arguments):
    """Calls a launcher with the current stream. Returns the code of the CUDA runtime."""
    values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
    types = {int: ctypes.c_long, float: ctypes.c_float}
    handle = torch.cuda.current_stream().cuda_stream
    given = [
        ctypes.c_void_p(value) if isinstance(argument, torch.Tensor) else types[type(value)](value)
        for value, argument in zip(values, arguments, strict=True)
    ]
    return getattr(library(), name)(*given, ctypes.c_void_p(handle))


def launch(name, *arguments):
    assert run(name, *arguments) == 0


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def assert_close(found, wanted, tolerance=1e-5):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def error_of(name, *arguments):
    """Returns the error that the stream has after a launch that CUDA accepts."""
    launch(name, *arguments)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        torch.cuda.clear_errors()
        return str(error)
    raise AssertionError(f"{name} did not fail")


def probe_the_gates_of_a_cell():
    for dtype, name in ((torch.float32, "cell_float"), (torch.float64, "cell_double")):
        gates, old = rand(5, 3 * 1030, dtype=dtype), rand(5, 1030, dtype=dtype)
        hidden, cell = torch.empty_like(old), torch.empty_like(old)
        launch(name, gates, old, hidden, cell, 5, 1030)
        entry, exit_, candidate = gates.chunk(3, 1)
        wanted = old + torch.nn.functional.elu(candidate) * entry.sigmoid()
        assert_close(cell, wanted)
        assert_close(hidden, wanted.tanh() * exit_.sigmoid())


def probe_mul_add():
    a, b = rand(10007), rand(10007)
    result = torch.empty_like(a)
    launch("mul_add", a, b, 3.5, result, a.numel())
    assert_close(result, a * b + 3.5)


def probe_bias_and_gelu_in_vectors():
    x, bias = rand(33, 64), rand(64)
    y = torch.empty_like(x)
    launch("bias_gelu", x, bias, y, 33, 64)
    assert_close(y, torch.nn.functional.gelu(x + bias, approximate="tanh"))


def probe_pairs_of_narrow_floats_round_as_torch_does():
    for dtype, name in ((torch.float16, "add_half"), (torch.bfloat16, "add_bfloat16")):
        a, b = rand(4096, dtype=torch.float32), rand(4096, dtype=torch.float32) * 1e-5
        a, b = (a * 3000).to(dtype), b.to(dtype)  # with subnormal numbers
        a[:6] = torch.tensor([65504.0, float("inf"), float("nan"), 6e-8, -0.0, 1.0])
        b[:6] = torch.tensor([16.0, 1.0, 1.0, 6e-8, 0.0, 2.0**-11])
        c = torch.empty_like(a)
        launch(name, a, b, c, a.numel())
        assert torch.equal(c[~c.isnan()], (a + b)[~c.isnan()]) and torch.equal(c.isnan(), (a + b).isnan())


def probe_layer_norm_with_shuffles():
    x, weight, bias = rand(17, 1000), rand(1000), rand(1000)
    y = torch.empty_like(x)
    launch("layer_norm", x, weight, bias, y, 17, 1000)
    assert_close(y, torch.nn.functional.layer_norm(x, (1000,), weight, bias), 1e-4)


def probe_prefix_sum_in_shared_memory():
    x = torch.randint(0, 100, (512,), device="cuda").float()
    out = torch.empty_like(x)
    launch("prefix_sum", x, out, 512)
    assert torch.equal(out, x.cumsum(0) - x)


def probe_histogram_with_atomics():
    values = torch.randint(0, 100, (50000,), dtype=torch.int32, device="cuda")
    counts, total = torch.empty(100, dtype=torch.int32, device="cuda"), torch.zeros(1, device="cuda")
    launch("histogram", values, counts, total, values.numel(), 100)
    assert torch.equal(counts.long(), torch.bincount(values.long(), minlength=100))
    assert total.item() == 50000


def probe_tiled_matmul():
    a, b = rand(45, 70), rand(70, 33)
    c = torch.empty(45, 33, device="cuda")
    launch("matmul", a, b, c, 45, 33, 70)
    assert_close(c, a @ b, 1e-4)


def probe_roi_align():
    """A region is sampled by grid_sample, whose rules at the edges are the same within the picture."""
    x, pooled, samples, scale = rand(2, 3, 20, 24), 4, 2, 0.5
    rois = torch.tensor([[0, 4, 6, 30, 28], [1, 10, 2, 40, 36]], dtype=torch.float32, device="cuda")
    out = torch.empty(2, 3, pooled, pooled, device="cuda")
    launch("roi_align", x, rois, out, 2, 3, 20, 24, pooled, samples, scale)
    points = (torch.arange(pooled * samples) + 0.5) / (pooled * samples)
    for found, roi in zip(out.cpu(), rois.cpu(), strict=True):
        image, left, top, right, bottom = int(roi[0]), *(roi[1:] * scale).tolist()
        ys, xs = top - 0.5 + points * (bottom - top), left - 0.5 + points * (right - left)
        grid = torch.stack(torch.meshgrid(ys / 19 * 2 - 1, xs / 23 * 2 - 1, indexing="ij")[::-1], -1)
        sampled = torch.nn.functional.grid_sample(x[image].cpu()[None], grid[None], align_corners=True)
        assert_close(found, torch.nn.functional.avg_pool2d(sampled, samples)[0], 1e-4)


def probe_nms_in_masks_of_64_bits():
    n, threshold = 150, 0.3
    corner = torch.rand(n, 2, device="cuda")
    boxes = torch.cat([corner, corner + 0.05 + torch.rand(n, 2, device="cuda") * 0.3], 1)
    mask = torch.zeros(n, 3, dtype=torch.int64, device="cuda")
    launch("nms", boxes, mask, n, threshold)
    low, high = (
        torch.maximum(boxes[:, None, :2], boxes[None, :, :2]),
        torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]),
    )
    common = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    wanted = (common / (area[:, None] + area[None] - common) > threshold).triu(1).cpu()
    bits = mask.cpu()[:, :, None] >> torch.arange(64) & 1
    assert torch.equal(bits.reshape(n, -1)[:, :n].bool(), wanted) and wanted.any()


def probe_ball_query():
    points, centers, radius, samples = (
        torch.rand(2, 200, 3, device="cuda"),
        torch.rand(2, 150, 3, device="cuda"),
        0.2,
        8,
    )
    found = torch.zeros(2, 150, samples, dtype=torch.int32, device="cuda")
    launch("ball_query", centers, points, found, 2, 200, 150, samples, radius)
    inside = (centers[:, :, None] - points[:, None]).square().sum(-1) < radius * radius
    for row, flags in zip(found.view(-1, samples).cpu(), inside.view(-1, 200).cpu(), strict=True):
        near = flags.nonzero().flatten()[:samples].tolist()
        assert row.tolist() == (near + near[:1] * samples)[:samples] if near else not row.any()


def probe_functions_of_warps_and_blocks():
    threads = 96
    out = torch.zeros(threads, 8, dtype=torch.int32, device="cuda")
    launch("lanes", out, threads)
    lane = torch.arange(threads) % 32
    third = sum(1 << i for i in range(0, 32, 3))
    odd = 0xAAAAAAAA - (1 << 32)
    same = torch.tensor([(0x11111111 << i) - (1 << 32 if i == 3 else 0) for i in range(4)])
    wanted = [
        torch.full((threads,), 496),
        torch.full((threads,), third),
        (lane - 1).clamp(min=0),
        (lane & ~7) + 2,
        torch.where(lane % 2 == 1, odd, 0),
        same[lane % 4],
        torch.full((threads,), 1 + 4 * 31),
        torch.full((threads,), threads // 2 + 1000),
    ]
    found = out.cpu().long()
    for column, numbers in enumerate(wanted):
        assert found[:, column].tolist() == numbers.tolist(), column


def probe_a_warp_with_lanes_that_the_block_does_not_have():
    x, out = torch.ones(32, device="cuda"), torch.zeros(1, device="cuda")
    launch("sum_of_a_warp", x, out, 32)
    assert out.item() == 32
    launch("sum_of_a_warp", x, out, 16)
    assert out.isnan().item()  # and not 32, which would look right


def probe_cooperative_groups():
    out = torch.zeros(64, 4, dtype=torch.int32, device="cuda")
    launch("tiles", out, 64)
    for thread, (total, below, together, rest) in enumerate(out.tolist()):
        rank = thread % 8
        assert total == 28 and below == (thread + 3 if rank < 5 else thread)
        assert together == (800 + thread // 32 * 32 + 4 if thread % 4 == 0 else 0)
        assert rest == thread // 8 + 10 * 0xAA


def probe_threads_that_leave_early():
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    launch("early", out, 40)
    assert out[:40].eq(40).all() and not out[40:].any()


def probe_threads_that_take_a_lock():
    lock, count = (
        torch.zeros(1, dtype=torch.int32, device="cuda"),
        torch.zeros(1, dtype=torch.int32, device="cuda"),
    )
    launch("locks", lock, count)
    assert count.item() == 4096


def probe_constant_memory():
    x, values = torch.ones(8, device="cuda"), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert library().scale(ctypes.c_void_p(x.data_ptr()), 8, ctypes.c_void_p(values.data_ptr())) == 0
    assert x.tolist() == [1, 2, 3, 4] * 2


def probe_memory_and_events_of_the_runtime():
    x, back = torch.randn(1000), torch.empty(1000)
    assert library().round_trip(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(back.data_ptr()), 1000) == 0
    assert_close(back, x * x + 1)


def probe_devices():
    assert library().devices() == 390  # three cards of capability 9.0, as the variables of the probes say


def probe_a_launch_is_a_task_of_its_stream():
    a, result, stream = rand(1000), torch.empty(1000, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _C.sleep(200_000_000)
        launch("mul_add", a, a, 0.0, result, 1000)
        event = stream.record_event()
        assert not event.query()
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(result, a * a)


def probe_a_kernel_in_a_graph():
    a, result = rand(1000), torch.empty(1000, device="cuda")
    launch("mul_add", a, a, 0.0, result, 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch("mul_add", a, a, 1.0, result, 1000)
    for factor in (1.0, 2.0):
        a.mul_(factor)
        graph.replay()
        assert_close(result, a * a + 1)


def probe_barriers_that_do_not_meet():
    x = torch.zeros(64, dtype=torch.int32, device="cuda")
    error = error_of("divergent", x)
    assert "divergent_kernel" in error and "wait at different barriers" in error, error
    assert "thread (0, 0, 0)" in error and "thread (16, 0, 0)" in error, error
    first = 1 + (FOLDER / "cuda_kernels.cu").read_text().splitlines().index("  if (threadIdx.x < 16)")
    assert f"cuda_kernels.cu:{first + 1}" in error and f"cuda_kernels.cu:{first + 3}" in error, error
    error = error_of("stuck", x)
    assert "wait for each other for ever" in error and "__syncwarp" in error and "block (0, 0, 0)" in error, (
        error
    )
    launch("early", x, 5)  # the threads of the host are as before
    assert x[:5].eq(5).all()


def probe_what_ends_a_kernel():
    x = torch.arange(32, dtype=torch.int32, device="cuda")
    launch("asserting", x, 32)
    torch.cuda.synchronize()
    error = error_of("asserting", x, 20)
    assert "device-side assert triggered: x[threadIdx.x] < limit" in error and "thread (20, 0, 0)" in error, (
        error
    )
    error = error_of("ptx", x)
    assert "inline PTX (mov.u32 %0, %laneid;)" in error and "cuda_kernels.cu:" in error, error
    assert "is launched by a kernel" in error_of("nested", x)


def probe_what_is_behind_a_failed_kernel_does_not_run():
    x, y = (
        torch.zeros(64, dtype=torch.int32, device="cuda"),
        torch.zeros(128, dtype=torch.int32, device="cuda"),
    )
    launch("divergent", x)
    launch("early", y, 3)
    try:
        y.cpu()
    except RuntimeError as error:
        assert "divergent_kernel" in str(error)
    else:
        raise AssertionError("a result behind a failed kernel was read")
    torch.cuda.clear_errors()
    assert not y.any()


def probe_launches_that_cuda_refuses():
    assert run("launch_of", 1, 1024, 0) == 0
    assert run("launch_of", 1, 1025, 0) == INVALID_CONFIGURATION
    assert run("launch_of", 0, 32, 0) == INVALID_CONFIGURATION
    assert run("launch_of", 1, 32, 0) == 0
    assert run("launch_of", 1, 32, 60 << 10) == INVALID_VALUE
    assert library().allow_shared(60 << 10) == 0
    assert run("launch_of", 1, 32, 60 << 10) == 0
    assert library().allow_shared(300 << 10) == INVALID_VALUE
    run("launch_of", 1, 32, 0)  # takes the last error
    torch.cuda.synchronize()


def probe_the_toolkit():
    import subprocess

    nvcc = Path(cpp_extension.CUDA_HOME, "bin", "nvcc")
    said = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    assert f"release {torch.version.cuda}," in said
