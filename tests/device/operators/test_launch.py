"""Operators that are tasks of a stream: when they run, what they see, and what their errors say."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from vccl import _C

pytestmark = pytest.mark.asynchronous


@pytest.fixture
def held(gate):
    """The current stream, which runs nothing until ``gate.open()``."""
    gate.close(torch.vdev.current_stream())
    return gate


def known(call):
    """Calls once, so that equal calls are tasks."""
    call()
    torch.vdev.synchronize()


def test_the_host_goes_on_while_the_stream_is_busy(held):
    _C._forget_calls()
    x = torch.empty(4, 4, device="vdev")
    x.fill_(2)
    y = (x @ x + 1).relu_()
    loss, index = y.max(dim=0)
    assert not torch.vdev.current_stream().query()
    held.open()
    assert y.tolist() == [[17.0] * 4] * 4 and loss.tolist() == [17.0] * 4 and index.shape == (4,)


def test_a_training_step_is_launched_without_waiting(gate):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1).to("vdev")
    net = nn.Sequential(nn.Embedding(10, 16), layer, nn.Linear(16, 10)).to("vdev")
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    tokens = torch.randint(0, 10, (2, 5), device="vdev")

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    step()
    step()
    torch.vdev.synchronize()
    gate.close(torch.vdev.current_stream())
    step()
    assert not torch.vdev.current_stream().query()
    gate.open()
    torch.vdev.synchronize()


def test_memory_is_reused_in_the_order_of_the_stream(held):
    x = torch.empty(1000, device="vdev")
    x.fill_(1)
    before = torch.vdev.memory_allocated()
    for _ in range(100):
        y = x + 1
        x = y * 1
        del y
    assert torch.vdev.memory_allocated() == before
    held.open()
    assert x.tolist() == [101.0] * 1000


def test_a_task_keeps_no_object_of_the_program(held):
    x = torch.empty(10, device="vdev")
    gone = weakref.ref(x)
    y = x.fill_(3) + 1
    del x
    gc.collect()
    assert gone() is None
    held.open()
    assert y.tolist() == [4.0] * 10


def test_a_stream_that_does_not_wait_reads_too_early(gate):
    x, y = torch.zeros(4, device="vdev"), torch.zeros(4, device="vdev")
    known(lambda: y.add_(x))
    gate.close(torch.vdev.current_stream())
    x.fill_(1)
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        early = x + y
        assert early.tolist() == [0, 0, 0, 0]
    side.wait_stream(torch.vdev.current_stream())
    with torch.vdev.stream(side):
        right = x + y
    gate.open()
    side.synchronize()
    assert right.tolist() == [1, 1, 1, 1]


def test_numbers_from_the_host_are_taken_at_the_call(held):
    number = torch.tensor(2.0)
    x = torch.empty(3, device="vdev")
    x.fill_(1)
    y = x * number
    values = torch.tensor([5.0, 6, 7])
    z = torch.empty(3, device="vdev").copy_(values, non_blocking=True)
    number.fill_(9)
    values.fill_(0)
    held.open()
    assert y.tolist() == [2, 2, 2] and z.tolist() == [5, 6, 7]


def test_an_error_of_a_kernel_is_the_streams():
    table, index = torch.ones(4, 2, device="vdev"), torch.zeros(3, dtype=torch.int64, device="vdev")
    known(lambda: nn.functional.embedding(index, table))
    index.fill_(9)
    torch.vdev.synchronize()
    nn.functional.embedding(index, table)
    with pytest.raises(IndexError, match=r"index out of range.*aten::\w+ on vdev:0.*VDEV_LAUNCH=blocking"):
        torch.vdev.synchronize()
    torch.vdev.synchronize()
    index.fill_(1)
    assert nn.functional.embedding(index, table).tolist() == [[1, 1]] * 3


def test_errors_of_arguments_are_raised_at_the_call(held):
    a, b = torch.empty(3, device="vdev"), torch.empty(4, device="vdev")
    with pytest.raises(RuntimeError, match="size of tensor"):
        a + b
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.ones(3)
    held.open()


def test_out_of_another_size_is_resized(gate):
    x, out = torch.ones(3, device="vdev"), torch.empty(0, device="vdev")
    for _ in range(3):
        torch.add(x, 1, out=out)
        assert out.shape == (3,) and out.tolist() == [2, 2, 2]
        out = torch.empty(0, device="vdev")


def test_modes_of_the_waiting_thread_do_not_reach_the_kernels(gate):
    x = torch.ones(4, 4, device="vdev", requires_grad=True)
    known(lambda: (x @ x).sum())
    for mode in (torch.inference_mode(), torch.no_grad(), torch.autocast("vdev", torch.bfloat16)):
        y = (x @ x).sum()
        with mode:
            torch.vdev.synchronize()
        assert y.dtype == torch.float32 and y.requires_grad and y.item() == 64
    with torch.inference_mode():
        z = (x @ x).sum()
    assert z.item() == 64 and z.is_inference()


def test_threads_share_a_stream():
    x = torch.zeros(64, device="vdev")
    ones = torch.ones(64, device="vdev")
    known(lambda: x.add_(ones).sub_(ones))

    def work():
        for _ in range(200):
            x.add_(ones)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.tolist() == [800.0] * 64


def test_a_long_queue_is_bounded(held):
    """The host runs tasks itself when too many are queued, so the gate has to be open by then."""
    x = torch.empty(1, device="vdev")
    x.fill_(0)
    threading.Timer(0.2, held.open).start()
    for _ in range(5000):
        x.add_(1)
    assert x.item() == 5000


def test_blocking(run_python):
    run_python(
        "import torch\n"
        "x = torch.ones(3, device='vdev')\n"
        "index = torch.full((1,), 9, device='vdev')\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        torch.nn.functional.embedding(index, x.view(3, 1))\n"
        "    except IndexError:\n"
        "        continue\n"
        "    raise AssertionError\n",
        VDEV_LAUNCH="blocking",
    )
    failed = run_python("import torch; torch.ones(3, device='vdev')", check=False, VDEV_LAUNCH="later")
    assert failed.returncode != 0 and "VDEV_LAUNCH" in failed.stderr and "async or blocking" in failed.stderr


@pytest.fixture
def restored():
    """Puts the switches back that a test changes."""
    # Where torch's own helpers of tests are imported, they forbid to set flags in the whole process.
    with torch.backends.__allow_nonbracketed_mutation():
        yield
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.backends.mkldnn.enabled = True


@pytest.mark.parametrize(
    ("switch", "holds"),
    [
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.get_default_dtype() is torch.float64),
        (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.are_deterministic_algorithms_enabled(),
        ),
        (lambda: torch.backends.mkldnn.set_flags(False), lambda: not torch.backends.mkldnn.enabled),
        (lambda: setattr(torch.backends.mkldnn, "enabled", False), lambda: not torch.backends.mkldnn.enabled),
    ],
    ids=["default_dtype", "deterministic", "mkldnn", "mkldnn_property"],
)
def test_a_switch_changes_when_the_streams_have_drained(gate, restored, switch, holds):
    x = torch.full((4,), 6, device="vdev")
    known(lambda: x / x)
    side, seen = torch.vdev.Stream(), []
    gate.close(side)
    torch.vdev.current_stream().wait_stream(side)
    with torch.vdev.stream(side):
        torch.vdev._launch_host_func(lambda: seen.append(holds()))
    y = x / 4
    threading.Timer(0.05, gate.open).start()
    switch()
    assert seen == [False] and holds()
    assert y.dtype == torch.float32 and y.tolist() == [1.5] * 4
    assert (x / 4).dtype == torch.get_default_dtype()


def test_a_switch_leaves_captures_and_tasks_alone(restored):
    x = torch.ones(4, device="vdev")
    known(lambda: x + 1)
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        y = x + 1
        torch.use_deterministic_algorithms(True)
    torch.vdev._launch_host_func(lambda: torch.set_default_dtype(torch.float64))
    graph.replay()
    assert y.tolist() == [2] * 4 and torch.get_default_dtype() == torch.float64


def test_denormal_numbers_are_flushed_as_at_the_call(held):
    x = torch.empty(4, dtype=torch.float64, device="vdev").fill_(1e-310)
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor cannot flush denormal numbers")
    try:
        flushed = x * 1
    finally:
        torch.set_flush_denormal(False)
    kept = x * 1
    held.open()
    assert kept.tolist() == [1e-310] * 4
    assert flushed.tolist() == [0] * 4


def test_strict(run_python):
    result = run_python(
        "import torch\n"
        "table = torch.ones(3, 1, device='vdev')\n"
        "index = torch.full((1,), 9, device='vdev')\n"
        "torch.nn.functional.embedding(index, table)\n"
        "for call in [torch.vdev.synchronize, torch.vdev.synchronize, table.cpu, lambda: table + 1] * 2:\n"
        "    try:\n"
        "        call()\n"
        "    except torch.AcceleratorError as error:\n"
        "        text = str(error)\n"
        "        assert error.error_code == 710\n"
        "        assert text.lower().startswith('vdev error: device-side assert triggered'), text\n"
        "        assert 'index out of range' in text and 'VDEV_STRICT=1' in text, text\n"
        "        continue\n"
        "    raise AssertionError(call)\n"
        "print(torch.ones(2, device='vdev:1').sum().item())\n",
        VDEV_STRICT="1",
    )
    assert result.stdout == "2.0\n"


def test_no_value_is_another_value_than_minus_one(held):
    _C._forget_calls()
    x = torch.arange(6.0).view(2, 3)
    y = x.to("vdev", non_blocking=True)
    for _ in range(2):
        results = [y.argmax(), y.argmax(-1), y.argmax(0), y.sum((0, 1)), y.sum((0,))]
    held.open()
    assert [result.tolist() for result in results] == [5, [2, 2], [1, 1, 1], 15, [3, 5, 7]]


def test_a_call_that_is_refused_writes_nothing_on_the_host(held):
    _C._forget_calls()
    number, factor = torch.tensor(3.0), torch.empty((), device="vdev")
    with pytest.raises(RuntimeError, match="same device"):
        number.mul_(factor.fill_(2))
    held.open()
    assert number.item() == 3
