"""What the sanitizer reports besides races, how parts of a program are watched, and torch's own races."""

import copy
import threading

import pytest
import torch
import torch.distributed as dist

import vccl.sanitizer
from vccl.sanitizer import RaceError, reports


def race():
    side, x = torch.vdev.Stream(), torch.ones(3, device="vdev")
    with torch.vdev.stream(side):
        x + 1


def test_only_the_body_is_watched():
    race()
    assert vccl.sanitizer.found() is None
    with vccl.sanitizer.enabled() as found:
        assert vccl.sanitizer.found() is found
    race()
    assert found.reports == [] and vccl.sanitizer.found() is None


def test_an_inner_body_has_its_own_reports():
    with vccl.sanitizer.enabled() as outer:
        with vccl.sanitizer.enabled() as inner:
            race()
        assert len(inner.reports) == 1 and outer.reports == []
        race()
    assert len(outer.reports) == 1


def test_an_event_of_an_earlier_body_orders_nothing():
    side, event = torch.vdev.Stream(), torch.vdev.Event()
    with vccl.sanitizer.enabled():
        for stream in (side, torch.vdev.current_stream()):
            with torch.vdev.stream(stream):
                torch.ones(3, device="vdev")
                event.record()
    with vccl.sanitizer.enabled() as found:
        with torch.vdev.stream(side):
            x = torch.ones(3, device="vdev")
        torch.vdev.current_stream().wait_event(event)
        x.sum()
    assert len(found.reports) == 1


def test_a_pair_of_lines_is_reported_once_and_counted():
    with vccl.sanitizer.enabled() as found:
        side, x = torch.vdev.Stream(), torch.ones(3, device="vdev")
        for _ in range(5):
            with torch.vdev.stream(side):
                x + 1
    (report,) = found.reports
    assert report["count"] == 5 and found.count == 1
    text = reports.text_of(report)
    assert "read after write" in text and "'x'" in text and "Float 3" in text


def test_a_deprecated_function_has_the_line_of_the_library_that_calls_it(tmp_path):
    file = tmp_path / "site-packages" / "library_that_clips.py"
    file.parent.mkdir()
    file.write_text(
        "import torch\n"
        "def clip(parameter):\n"
        "    with torch.vdev.stream(torch.vdev.Stream()):\n"
        "        torch.nn.utils.clip_grad_norm([parameter], 1.0)\n"
    )
    library: dict = {}
    exec(compile(file.read_text(), file, "exec"), library)
    weight = torch.ones(8).to("vdev").requires_grad_()
    # A thread of autograd calls the hook, where no line of the program is running.
    weight.register_post_accumulate_grad_hook(library["clip"])
    with vccl.sanitizer.enabled() as found, pytest.warns(FutureWarning, match="clip_grad_norm"):
        weight.sum().backward()
    torch.accelerator.synchronize()
    assert {report["second"]["file"] for report in found.reports} == {str(file)}


def test_the_second_access_raises():
    with vccl.sanitizer.enabled(raises=True), pytest.raises(RaceError, match="read after write"):
        race()
    torch.vdev.synchronize()
    assert torch.ones(2, device="vdev").sum().item() == 2


def test_memory_that_nobody_has_written():
    with vccl.sanitizer.enabled(uninit=True) as found:
        x = torch.empty(8, device="vdev")
        x[:4].fill_(1)
        x[:4].sum()
        x[4:].sum()
        torch.zeros(3, device="vdev").sum()
    (report,) = found.reports
    assert report["kind"] == "read of unwritten memory" and report["first"] is None
    assert report["second"]["op"] == "aten::sum" and report["tensor"]["shape"] == [4]
    with vccl.sanitizer.enabled() as found:
        torch.empty(8, device="vdev").sum()
    assert found.reports == []


def test_results_that_an_operator_sizes_are_written():
    x = torch.ones(8, device="vdev")
    with vccl.sanitizer.enabled(uninit=True) as found:
        for result in (torch.arange(4, device="vdev"), torch.eye(3, device="vdev")):
            result.sum()
        for result in (x.abs(), torch.complex(x, x)):
            result.sum()
        grown = torch.zeros(4, device="vdev").resize_(5000)
        grown[:4].sum()
        str(x)
    assert found.reports == []


def test_an_operator_in_place_reads_what_nobody_has_written():
    with vccl.sanitizer.enabled(uninit=True) as found:
        torch.empty(8, device="vdev").add_(1)
        x = torch.empty(8, device="vdev")
        torch.mul(x, 2, out=x)
    assert [report["second"]["op"] for report in found.reports] == ["aten::add", "aten::mul"]
    with vccl.sanitizer.enabled(uninit=True) as found:
        for fill in (torch.Tensor.zero_, torch.Tensor.normal_, torch.Tensor.bernoulli_):
            fill(torch.empty(8, device="vdev")).sum()
        torch.empty(8, device="vdev").copy_(torch.ones(8)).add_(1)
        grown = torch.empty(4, device="vdev").resize_(5000)
        assert found.reports == []
        grown[:4].sum()
    assert len(found.reports) == 1


def test_waits_that_order_nothing():
    with vccl.sanitizer.enabled(useless=True) as found:
        torch.ones(3, device="vdev")
        torch.vdev.synchronize()
        assert found.reports == []
        torch.vdev.synchronize()
    (report,) = found.reports
    assert report["kind"] == "useless wait" and report["waited_ms"] >= 0 and found.count == 0
    assert "useless wait" in reports.text_of(report)


def test_the_verdict_does_not_depend_on_who_runs_first():
    """The side stream has ended long before the second access, and nobody has waited for it."""
    done = threading.Event()
    with vccl.sanitizer.enabled() as found:
        side, x = torch.vdev.Stream(), torch.empty(3, device="vdev")
        with torch.vdev.stream(side):
            x.fill_(1)
            torch.vdev._launch_host_func(done.set)
        assert done.wait(60)
        x.sum()
    assert len(found.reports) == 1


@pytest.mark.daily
def test_a_compiled_function():
    @torch.compile
    def double(x):
        return x * 2 + 1

    x = torch.ones(64, device="vdev")
    double(x)
    torch.vdev.synchronize()
    for repaired in (False, True):
        with vccl.sanitizer.enabled() as found:
            side = torch.vdev.Stream()
            y = double(x)
            if repaired:
                side.wait_stream(torch.vdev.current_stream())
            with torch.vdev.stream(side):
                y.sum()
        assert len(found.reports) == (0 if repaired else 1)


def test_a_loader_that_pins_and_a_prefetcher():
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=0)
    with vccl.sanitizer.enabled() as found:
        side, total = torch.vdev.Stream(), torch.zeros((), device="vdev")
        for (batch,) in loader:
            with torch.vdev.stream(side):
                on_card = batch.to("vdev", non_blocking=True)
            torch.vdev.current_stream().wait_stream(side)
            on_card.record_stream(torch.vdev.current_stream())
            total += on_card.sum()
        assert total.item() == 496
    assert found.reports == []


@pytest.mark.ranks(1)
@pytest.mark.parametrize("repaired", [False, True])
def test_states_of_the_zero_optimizer(ranks, repaired):
    """A race of torch 2.13: consolidate_state_dict() copies to the host and does not wait."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    weight = torch.nn.Parameter(torch.ones(4, device="vdev"))
    optimizer = ZeroRedundancyOptimizer([weight], torch.optim.Adam, lr=0.01)
    weight.grad = torch.ones(4, device="vdev")
    optimizer.step()
    dist.barrier()
    with vccl.sanitizer.enabled() as found:
        optimizer.consolidate_state_dict(to=0)
        if repaired:
            torch.accelerator.synchronize()
        copy.deepcopy(optimizer.state_dict())
    assert bool(found.reports) is not repaired
    assert all(report["kind"] == "read after write" for report in found.reports)
