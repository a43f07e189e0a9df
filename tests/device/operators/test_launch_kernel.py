"""Kernels that others write, launched with vdev::launch_kernel() of <vccl/device.hpp>.

`_C.launch_kernel` calls it with a function of Python in the place of the kernel. Calls from C++ are those of
`examples/custom_op`, which `tests/project/test_wheel.py` builds.
"""

import ctypes
from collections.abc import Callable

import pytest
import torch

from vccl import _C


def on_host(x: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor over the memory of a contiguous card tensor, which it does not keep."""
    return torch.frombuffer((ctypes.c_char * x.nbytes).from_address(x.data_ptr()), dtype=x.dtype)


def double(source: torch.Tensor, target: torch.Tensor) -> None:
    """Makes `target` twice `source`, in stream order."""
    read, written = on_host(source), on_host(target)
    _C.launch_kernel("tests::double", [source], [target], lambda: torch.mul(read, 2, out=written))


def fail() -> None:
    raise ValueError("the reason")


@pytest.mark.asynchronous
def test_it_runs_in_stream_order_and_the_call_returns_at_once(gate):
    x, y = torch.zeros(4, device="vdev"), torch.zeros(4, device="vdev")
    gate.close(torch.vdev.current_stream())
    x.fill_(3)
    double(x, y)
    x.fill_(5)
    assert not torch.vdev.current_stream().query()
    gate.open()
    assert (y.tolist(), x.tolist()) == ([6] * 4, [5] * 4)


@pytest.mark.parametrize("kind", ["vdev", "accelerator"])
def test_a_graph_replays_it_among_operators(kind):
    graph = torch.vdev.VDEVGraph() if kind == "vdev" else torch.accelerator.Graph()
    x = torch.ones(4, device="vdev")
    total = torch.zeros(4, device="vdev")
    torch.vdev.synchronize()

    def step() -> None:
        y = torch.empty_like(x)
        double(x, y)
        total.add_(y)
        x.mul_(3)

    if kind == "vdev":
        with torch.vdev.graph(graph):
            step()
    else:
        with torch.vdev.stream(torch.vdev.Stream()), graph:
            step()
    assert total.tolist() == [0] * 4  # a capture runs nothing
    for _ in range(3):
        graph.replay()
    assert total.tolist() == [2 * (1 + 3 + 9)] * 4
    assert x.tolist() == [27] * 4


def test_an_error_in_a_replay_names_the_kernel():
    graph = torch.vdev.VDEVGraph()
    x = torch.ones(4, device="vdev")
    fails = [True]
    with torch.vdev.graph(graph):
        _C.launch_kernel("tests::moody", [], [x], lambda: fail() if fails[0] else None)
        x.add_(1)
    graph.replay()
    with pytest.raises(RuntimeError, match=r"(?s)the reason.*\(raised by tests::moody on vdev:0"):
        torch.vdev.synchronize()
    fails[0] = False
    x.fill_(1)
    graph.replay()
    assert x.tolist() == [2] * 4


@pytest.mark.asynchronous
def test_an_error_is_the_streams(gate):
    x, y, z, w = (torch.full((4,), value, device="vdev") for value in (1.0, 0.0, 0.0, 0.0))
    side = torch.vdev.Stream()
    torch.vdev.synchronize()
    with torch.vdev.stream(side):
        gate.close(side)
        _C.launch_kernel("tests::fail", [x], [y], fail)
        double(y, z)  # reads what was not written
        double(x, w)  # runs
    gate.open()
    with pytest.raises(
        RuntimeError, match=r"(?s)the reason.*\(raised by tests::fail on vdev:0, which ran after"
    ):
        side.synchronize()
    assert w.tolist() == [2] * 4
    for tensor in (y, z):
        with pytest.raises(RuntimeError, match="the reason"):
            tensor.tolist()
    with torch.vdev.stream(side):
        double(x, y)
        double(y, z)
    side.synchronize()
    assert y.tolist() == [2] * 4 and z.tolist() == [4] * 4


@pytest.mark.asynchronous
def test_memory_of_another_stream_is_kept_by_record_stream(gate):
    side = torch.vdev.Stream()
    x, y = torch.ones(1 << 18, device="vdev"), torch.zeros(1 << 18, device="vdev")
    torch.vdev.synchronize()
    gate.close(side)
    with torch.vdev.stream(side):
        double(x, y)
    x.record_stream(side)
    place = x.data_ptr()
    del x
    fresh = torch.full((1 << 18,), 7.0, device="vdev")
    assert fresh.data_ptr() != place
    torch.vdev.current_stream().synchronize()
    gate.open()
    side.synchronize()
    assert y.eq(2).all()


@pytest.mark.asynchronous
def test_memory_of_its_own_stream_is_reused_behind_it(gate):
    x, y = torch.ones(1 << 18, device="vdev"), torch.zeros(1 << 18, device="vdev")
    gate.close(torch.vdev.current_stream())
    double(x, y)
    del x  # the next tensor may have its memory
    fresh = torch.full((1 << 18,), 7.0, device="vdev")
    gate.open()
    assert y.eq(2).all() and fresh.eq(7).all()


BLOCKING = """
import sys
import torch
from test_launch_kernel import double, fail, on_host
from vccl import _C

x, y = torch.ones(4, device="vdev"), torch.zeros(4, device="vdev")
double(x, y)
assert on_host(y).tolist() == [2] * 4  # reads without a wait
try:
    _C.launch_kernel("tests::fail", [x], [y], fail)
except RuntimeError as error:
    assert "the reason" in str(error) and "(raised by tests::fail on vdev:0)" in str(error), error
else:
    sys.exit("no error")
torch.vdev.synchronize()
"""


@pytest.mark.parametrize("variable", [{"VDEV_LAUNCH": "blocking"}, {"VDEV_LAUNCH_BLOCKING": "1"}], ids=str)
def test_blocking_launches_run_it_at_the_call(run_python, variable):
    run_python(BLOCKING, **variable)


STRICT = """
import torch
from test_launch_kernel import fail
from vccl import _C

x = torch.ones(4, device="vdev")
_C.launch_kernel("tests::fail", [x], [x], fail)
for use in (torch.vdev.synchronize, lambda: x + 1):
    try:
        use()
    except RuntimeError as error:
        assert "device-side assert triggered" in str(error) and "tests::fail" in str(error), error
    else:
        raise SystemExit("no error")
"""


@pytest.mark.asynchronous
def test_an_error_is_final_in_strict_mode(run_python):
    run_python(STRICT, VDEV_STRICT="1")


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (lambda: [], "tests::none got no tensor"),
        (lambda: [torch.ones(2)], "tests::none runs on a card, and got a tensor of Strided layout on cpu"),
        (
            lambda: [torch.eye(2, device="vdev").to_sparse()],
            "tests::none runs on a card, and got a tensor of Sparse layout",
        ),
        (
            lambda: [torch.ones(2, device="vdev:0"), torch.ones(2, device="vdev:1")],
            "tests::none got tensors on vdev:0 and on vdev:1",
        ),
    ],
    ids=["none", "cpu", "sparse", "two cards"],
)
def test_wrong_tensors_are_refused_at_the_call(tensors: Callable[[], list[torch.Tensor]], text):
    called = []
    with pytest.raises(RuntimeError, match=text):
        _C.launch_kernel("tests::none", tensors(), [], lambda: called.append(1))
    torch.vdev.synchronize()
    assert not called


def test_it_waits_for_what_the_stream_waits_for():
    """Two streams take turns at one tensor."""
    x = torch.ones(4, device="vdev")
    streams = torch.vdev.Stream(), torch.vdev.Stream(priority=-1)
    torch.vdev.synchronize()
    for turn in range(10):
        one, other = streams[turn % 2], streams[1 - turn % 2]
        with torch.vdev.stream(one):
            double(x, x)
        other.wait_stream(one)
    torch.vdev.synchronize()
    assert x.tolist() == [2.0**10] * 4
