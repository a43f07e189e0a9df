"""Kernels are tasks of the stream, and their faults are errors that name the kernel and the line."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import small_kernels as kernels
import torch
import triton

import vccl.sanitizer

asynchronous = pytest.mark.asynchronous


def line_of(text: str) -> int:
    """The line of small_kernels.py that contains a text."""
    lines = Path(kernels.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def failure(card: str, launch: Callable[[], object]) -> str:
    """The error of a kernel: the launch raises it with VDEV_LAUNCH=blocking, else a synchronisation."""
    with pytest.raises(RuntimeError) as caught:
        launch()
        getattr(torch, card).synchronize()
    return str(caught.value)


@asynchronous
def test_a_launch_returns_at_once_and_keeps_the_stream_s_order(card):
    module = getattr(torch, card)
    x, out = torch.zeros(64, device=card), torch.zeros(64, device=card)
    opened, stream = threading.Event(), module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        module._launch_host_func(lambda: opened.wait(60))
        x.fill_(3.0)
        kernels.add[(1,)](x, x, out, 64, BLOCK=64)
        x.fill_(5.0)
        after = out + 1
    opened.set()
    stream.synchronize()
    assert out.tolist() == [6.0] * 64 and after.tolist() == [7.0] * 64


@asynchronous
def test_arguments_may_be_freed_before_the_kernel_has_run(card):
    module = getattr(torch, card)
    opened, out = threading.Event(), torch.zeros(256, device=card)
    module._launch_host_func(lambda: opened.wait(60))
    x = torch.full((256,), 2.0, device=card)
    kernels.add[(1,)](x, x, out, 256, BLOCK=256)
    del x
    reused = torch.full((256,), 9.0, device=card)
    opened.set()
    assert out.tolist() == [4.0] * 256 and reused[0] == 9.0


@asynchronous
def test_kernels_on_two_streams_and_threads(card):
    module = getattr(torch, card)
    results = {}

    def work(number: int) -> None:
        with module.stream(module.Stream()):
            x, out = torch.full((300,), float(number), device=card), torch.zeros(300, device=card)
            for _ in range(5):
                kernels.add[(5,)](x, out, out, 300, BLOCK=64)
            results[number] = out.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [5.0 * number] * 300 for number in range(3)}


def test_a_read_out_of_range_names_kernel_line_and_tensor(card):
    x, out = torch.zeros(100, device=card), torch.zeros(100, device=card)
    text = failure(card, lambda: kernels.copy_without_mask[(4,)](x, out, 100, BLOCK=32))
    line = line_of("tl.load(x_ptr + offsets), mask=offsets < n)")
    assert f"The Triton kernel 'copy_without_mask' failed at {kernels.__file__}:{line}" in text
    assert "(program (3, 0, 0) of the grid (4, 1, 1))" in text
    assert "it reads element 100 of 'x_ptr', which is out of range" in text
    assert "The storage of 'x_ptr' has 100 elements of float32." in text


def test_a_write_out_of_range_writes_nothing_there(card):
    out = torch.zeros(200, dtype=torch.int32, device=card)
    beyond = torch.zeros(200, dtype=torch.int32, device=card)
    text = failure(card, lambda: kernels.store_without_mask[(4,)](out[:128], BLOCK=64))
    assert "it writes element 200 of 'out_ptr'" in text
    getattr(torch, card).clear_errors()
    assert beyond.sum() == 0 and out[:192].tolist() == list(range(192))


@asynchronous
def test_a_failed_kernel_spoils_what_it_writes_and_nothing_else(card):
    x, out = torch.zeros(100, device=card), torch.zeros(100, device=card)
    kernels.copy_without_mask[(4,)](x, out, 100, BLOCK=32)
    with pytest.raises(RuntimeError, match="copy_without_mask"):
        out.tolist()
    getattr(torch, card).clear_errors()
    assert x.tolist() == [0.0] * 100


def test_the_tensors_that_a_kernel_writes_are_known(card):
    from vccl._triton.uses import written_parameters

    def tensors(kernel):
        return {name for name in written_parameters(kernel) if name.endswith("ptr")}

    assert tensors(kernels.add) == {"out_ptr"}
    assert tensors(kernels.double_in_place) == {"ptr"}
    assert tensors(kernels.product_of_three) == {"out_ptr"}
    assert tensors(kernels.descriptor_copy) == {"out_ptr"}
    assert tensors(kernels.histogram) == {"counts_ptr"}
    assert tensors(kernels.matmul) == {"c_ptr"}


def test_functions_that_kernels_call(card):
    a, b, c = (torch.randn(50, device=card) for _ in range(3))
    out = torch.zeros(50, device=card)
    kernels.product_of_three[(1,)](a, b, c, out, 50, BLOCK=64)
    assert torch.equal(out, a * b * c)


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (kernels.with_assembly, "lacks the assembly of a GPU ('add.f32 $0, $1, $1;'"),
        (kernels.if_of_a_block, "a condition is a block of several elements"),
    ],
)
def test_what_the_interpreter_lacks_is_named(card, kernel, what):
    x = torch.zeros(16, device=card)
    assert what in failure(card, lambda: kernel[(1,)](x, torch.zeros_like(x), BLOCK=16))


def test_a_lock_that_nobody_releases_is_an_error(card, monkeypatch):
    from vccl._triton import builder

    lock, count = torch.zeros(2, dtype=torch.int32, device=card)
    kernels.take_lock[(5,)](lock, count)
    assert count.item() == 5
    monkeypatch.setattr(builder, "_MOST_FAILURES", 20)
    lock.fill_(1)
    text = failure(card, lambda: kernels.take_lock[(1,)](lock, count))
    assert "'take_lock' failed at" in text and "has not found the expected value 20 times" in text


def test_device_assert_is_for_debug_mode(card):
    x = torch.zeros(16, device=card)
    kernels.assertion[(1,)](x, BLOCK=16)
    getattr(torch, card).synchronize()
    text = failure(card, lambda: kernels.assertion[(1,)](x, BLOCK=16, debug=True))
    assert "x must be positive" in text


def test_a_tensor_that_is_not_on_the_current_card_is_refused(card):
    out = torch.zeros(8, device=card)
    with pytest.raises(ValueError, match=r"'x_ptr' of the Triton kernel 'add' .* on cpu"):
        kernels.add[(1,)](torch.zeros(8), out, out, 8, BLOCK=8)
    other = torch.zeros(8, device=f"{card}:1")
    with pytest.raises(ValueError, match=rf"{card}:1.*current card, {card}:0"):
        kernels.add[(1,)](other, other, other, 8, BLOCK=8)
    with getattr(torch, card).device(1):
        kernels.add[(1,)](other + 1, other, other, 8, BLOCK=8)
    assert other.tolist() == [1.0] * 8


def test_a_wrong_option_is_refused_at_the_call(card):
    x = torch.zeros(8, device=card)
    with pytest.raises(KeyError, match="num_wraps"):
        kernels.add[(1,)](x, x, x, 8, BLOCK=8, num_wraps=4)
    with pytest.raises(TypeError):
        kernels.add[(1,)](x, x, BLOCK=8)


def test_a_configuration_is_chosen_without_timing(card, monkeypatch):
    x, out = torch.zeros(128, device=card), torch.zeros(128, device=card)
    runs = torch.zeros(1, dtype=torch.int32, device=card)
    grid = lambda meta: (triton.cdiv(128, meta["BLOCK"]),)  # noqa: E731
    kernels.tuned[grid](x, out, runs, 128)
    assert kernels.tuned.best_config.kwargs == {"BLOCK": 64} and runs.item() == 1
    assert out.tolist() == [64.0] * 128
    x, out = torch.zeros(100, device=card), torch.zeros(100, device=card)
    monkeypatch.setenv("VDEV_TRITON_AUTOTUNE", "1")
    kernels.tuned[grid](x, out, runs.zero_(), 100)
    assert runs.item() > 2 and abs(out[0].item()) in (64, 128)
    monkeypatch.setenv("VDEV_TRITON_AUTOTUNE", "often")
    with pytest.raises(ValueError, match="VDEV_TRITON_AUTOTUNE is 'often', but must be 0 or 1"):
        kernels.tuned[grid](x[:77], out, runs, 77)


def test_what_programs_ask_the_driver(card):
    active = triton.runtime.driver.active
    assert active.get_current_target().backend == card
    assert active.get_active_torch_device() == torch.device(card, 0)
    properties = active.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] > 0 and properties["warpSize"] == 32
    x = torch.zeros(64, device=card)
    compiled = kernels.add.warmup(x, x, x, 64, BLOCK=64, grid=(1,))
    compiled._init_handles()
    assert compiled.n_regs > 0 and compiled.metadata.shared > 0
    assert triton.testing.do_bench(lambda: kernels.add[(1,)](x, x, x, 64, BLOCK=64), warmup=1, rep=2) > 0


@asynchronous
def test_a_graph_replays_kernels(card):
    module = getattr(torch, card)
    x, out = torch.ones(64, device=card), torch.zeros(64, device=card)
    kernels.add[(1,)](x, x, out, 64, BLOCK=64)
    graph, stream = torch.accelerator.Graph(), module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream), graph:
        kernels.add[(1,)](x, x, out, 64, BLOCK=64)
    x.fill_(4.0)
    graph.replay()
    assert out.tolist() == [8.0] * 64


@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_race_detector_knows_what_kernels_read_and_write(card, is_ordered):
    module = getattr(torch, card)
    x, once, twice = torch.ones(64, device=card), torch.zeros(64, device=card), torch.zeros(64, device=card)
    first, second = module.Stream(), module.Stream()
    module.synchronize()
    with vccl.sanitizer.enabled() as found:
        with module.stream(first):
            kernels.add[(1,)](x, x, once, 64, BLOCK=64)
        if is_ordered:
            second.wait_stream(first)
        with module.stream(second):
            kernels.add[(1,)](x, once, twice, 64, BLOCK=64)
        module.synchronize()
    assert len(found.reports) == (0 if is_ordered else 1)


def test_an_empty_grid_runs_nothing(card):
    out = torch.zeros(8, device=card)
    kernels.store_without_mask[(0,)](out, BLOCK=64)
    getattr(torch, card).synchronize()
    assert out.sum() == 0


@pytest.mark.parametrize("first", ["torch", "triton"])
def test_either_may_be_imported_first(first):
    second = {"torch": "triton", "triton": "torch"}[first]
    program = (
        f"import {first}, {second}, sys\n"
        "assert 'vccl._triton.kernel' not in sys.modules\n"
        "assert type(triton.runtime.driver.active).__name__ == 'CardDriver'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    alone = "import torch, sys; assert 'triton' not in sys.modules and 'vccl._triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", alone], check=True, timeout=120)
