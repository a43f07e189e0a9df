"""The holes in torch that the device's patches fill. A test that fails here says that its patch can go."""

import multiprocessing
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import pytest
import torch
from compiling import compiling
from torch.multiprocessing import reductions
from torch_build import without_cuda
from unpatched import unpatched


def test_hole_of_dlpack_device():
    x = torch.ones(3, device="vdev")
    with unpatched("dlpack_device"), pytest.raises(ValueError, match="Unknown device type vdev"):
        torch.from_dlpack(x)


def test_hole_of_process_sharing(capfd):
    x = torch.ones(3, device="vdev")
    reducers = ForkingPickler._extra_reducers
    with unpatched("process_sharing"), mock.patch.dict(reducers):
        reductions.init_reductions()
        queue = multiprocessing.get_context("spawn").Queue()
        queue.put(x)
        queue.put("what comes next")
        assert queue.get(timeout=300) == "what comes next"
        queue.close()
        queue.join_thread()
    assert "Traceback" in capfd.readouterr().err  # which the queue's thread has printed


@pytest.mark.torch(">=2.13", "the hole is elsewhere, as the next test says")
def test_hole_of_inductor():
    import torch._inductor.compile_fx

    layer = torch.nn.LayerNorm(8, device="vdev")
    with (
        compiling(),
        unpatched("inductor"),
        unpatched("inductor_fallback"),
        pytest.raises(Exception, match="can't multiply sequence by non-int"),
    ):
        torch.compile(lambda x: layer(x + 1) * 2)(torch.randn(4, 8, device="vdev"))


@pytest.mark.torch("<2.13", "the hole is elsewhere, as the test before says")
def test_the_hole_of_inductor_in_older_versions():
    """They compile that, and stop at a random number without saying why."""
    import torch._inductor.compile_fx

    with (
        compiling(),
        unpatched("inductor"),
        unpatched("inductor_fallback"),
        pytest.raises(Exception, match="AssertionError"),
    ):
        torch.compile(lambda x: x + torch.rand_like(x))(torch.ones(4, device="vdev"))


def test_hole_of_inductor_fallback():
    import torch._inductor.compile_fx

    compiled = torch.compile(lambda x: x + 1, options={"cpp_wrapper": True})
    with compiling(), unpatched("inductor_fallback"), pytest.raises(Exception, match="vdev not supported"):
        compiled(torch.ones(3, device="vdev"))


@without_cuda
def test_hole_of_cuda_extensions(tmp_path, monkeypatch):
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with unpatched("cuda_extensions"), pytest.raises(OSError, match="CUDA_HOME"):
        cpp_extension.load_inline("mine", "", cuda_sources="int f();", build_directory=str(tmp_path))


def test_hole_of_triton_kernels():
    """`make triton` runs this, as Triton is not installed with torch for the CPU and is larger than torch."""
    pytest.importorskip("triton")
    from triton.backends import backends
    from triton.runtime.driver import DriverConfig

    with mock.patch.dict(backends):
        del backends["vccl"]
        with pytest.raises(RuntimeError, match="0 active drivers"):
            DriverConfig().active.get_current_device()


def test_hole_of_triton_in_dynamo():
    triton = pytest.importorskip("triton")
    from torch._dynamo.exc import Unsupported

    @triton.jit
    def nothing(x_ptr):
        return

    def launch(x):
        nothing[(1,)](x)
        return x + 1

    with unpatched("triton_in_dynamo"), pytest.raises(Unsupported):
        torch.compile(launch, backend="eager", fullgraph=True)(torch.ones(3, device="vdev"))


def test_hole_of_fake_convolution():
    from torch._subclasses import FakeTensorMode, fake_impls

    def convolution(x):
        return torch.nn.functional.conv2d(x, torch.ones(4, 4, 3, 3, device="vdev"))

    x = torch.ones(2, 4, 9, 9, device="vdev").to(memory_format=torch.channels_last)
    operator = torch.ops.aten.convolution.default

    def strides():
        FakeTensorMode.cache_clear()
        with FakeTensorMode() as mode:
            return convolution(mode.from_tensor(x)).stride()

    assert strides() == convolution(x).stride()
    with mock.patch.dict(fake_impls.op_implementations_dict, {operator: fake_impls.conv}):
        assert strides() != convolution(x).stride()
    FakeTensorMode.cache_clear()


def test_hole_of_stream_priority(run_python):
    code = "import torch; assert not hasattr(torch.Stream, 'priority')"
    run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_hole_of_flex_attention():
    from torch.nn.attention import flex_attention

    x = torch.ones(1, 1, 16, 16, device="vdev")
    with unpatched("flex_attention"), pytest.raises(ValueError, match="only supported on CUDA, CPU"):
        flex_attention.flex_attention(x, x, x)


@pytest.mark.asynchronous
def test_hole_of_switches(gate):
    x, index, source = (
        torch.zeros(4, device="vdev"),
        torch.tensor([2]).to("vdev"),
        torch.ones(1, device="vdev"),
    )
    for _ in range(2):
        x.put_(index, source)
    torch.vdev.synchronize()
    gate.close(torch.vdev.current_stream())
    x.put_(index, source)
    with unpatched("switches"):
        torch.use_deterministic_algorithms(True)
        gate.open()
        try:
            with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
                torch.vdev.synchronize()
        finally:
            torch.use_deterministic_algorithms(False)
