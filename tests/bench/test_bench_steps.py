"""vccl.bench steps: what it compares, that it finds wrong results, and one small run of everything."""

import json
import subprocess
import sys

import pytest
import torch

from vccl.bench import overlap, rank_steps, steps
from vccl.bench.turns import Contest, Row, compare, different
from vccl.bench.workloads import LESSONS, Foreach, Launches, TinyOperators, Training, Workload

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", LESSONS)
@pytest.mark.parametrize("period", [1, 2])
def test_training_reads_the_loss_every_period(name, period):
    training = Training(LESSONS[name], period, CPU, small=True)
    training.run(3)
    training.run(1)
    assert len(training.losses) == 4 // period
    parameters = len(list(training.model.parameters()))
    assert len(training.results()) == len(training.losses) + parameters
    assert training.losses[-1] != training.losses[0]


def test_training_on_the_same_data_gives_the_same():
    one, other = (Training(LESSONS["mlp"], 1, CPU, small=True) for _ in range(2))
    one.run(2)
    other.run(1)
    other.run(1)
    assert different(one.results(), other.results()) == 0
    other.run(1)
    with torch.no_grad():
        next(one.model.parameters()).add_(1e-3)
    one.run(1)
    assert different(one.results(), other.results()) > 0


def test_small_operators_compute_something():
    tiny, foreach = TinyOperators(64, CPU, small=True), Foreach(CPU, small=True)
    launches = [Launches(in_place, CPU, small=True) for in_place in (True, False)]
    for workload in (tiny, foreach, *launches):
        workload.run(3)
    assert tiny.sums[0] == tiny.sums[2] and len(tiny.sums) == 3
    assert foreach.results()[:, 0].tolist() == [number + 3.0 for number in range(100)]
    assert [workload.results().unique().tolist() for workload in launches] == [[3.0], [3.0]]


class Wrong(Workload):
    """Computes something else on the card, and takes part in turns."""

    def __init__(self, device, small):
        super().__init__(device, small)
        self.made = []

    def run(self, steps):
        self.made.append(steps)

    def results(self):
        return torch.tensor([1.0, 2.0, float(self.device.type != "cpu"), float(sum(self.made))])


def test_both_make_the_same_steps_and_wrong_results_are_counted():
    made = []

    def make(device, small):
        made.append(Wrong(device, small))
        return made[-1]

    row = compare("wrong", Contest(make, steps=7, exact=True, more=2), turns=3, small=False)
    assert row.different == 1 and (row.turns, row.steps) == (6, 7)
    assert made[0].made == made[1].made and len(made[0].made) == 3 + 6
    assert "1 DIFFER" in row.text() and "equal" not in row.text()
    assert "equal" in Row("fine", 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0).text()


def test_nan_differs():
    assert different(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan])) == 1


def test_losses_of_ranks_are_compared_with_one_process():
    texts = rank_steps.batches(2, small=True)
    expected = rank_steps.reference(texts, small=True)
    assert rank_steps.are_right([*expected, 0.0], expected)
    assert not rank_steps.are_right([loss * 1.001 for loss in expected], expected)
    assert not rank_steps.are_right(expected, rank_steps.reference(texts[:1], small=True))


@pytest.mark.parametrize(
    "words, message",
    [
        ("--cases lstm,gpt", "no case is called gpt"),
        ("--turns 0", "less than 1"),
        ("--ranks two", "not a list of numbers"),
    ],
)
def test_bad_arguments_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        steps.parse(words.split())
    assert message in capsys.readouterr().err


@pytest.mark.daily
def test_the_command_measures_everything(tmp_path):
    # In a process of its own: autograd's thread for a card keeps the number of threads of its first use.
    path = tmp_path / "figures.json"
    words = ["--small", "--turns", "2", "--ranks", "2", "--json", str(path)]
    command = [sys.executable, "-m", "vccl.bench", "steps", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(path.read_text())
    assert [row["name"] for row in figures["rows"]] == list(steps.CONTESTS)
    assert all(f" {name} " in done.stdout for name in steps.CONTESTS) and "DIFFER" not in done.stdout
    assert all(row["cpu"] > 0 and row["card"] > 0 and row["different"] == 0 for row in figures["rows"])
    assert figures["overlap"]["right"] and figures["overlap"]["gain"] > 0
    assert [(run["kind"], run["ranks"], run["right"]) for run in figures["ranks"]] == [
        ("ddp", 2, True),
        ("fsdp2", 2, True),
    ]


def test_the_command_fails_if_results_differ(monkeypatch, capsys):
    monkeypatch.setattr(steps, "CONTESTS", {"tiny/64": Contest(Wrong)})
    threads = torch.get_num_threads()
    assert steps.main(["--small", "--turns", "1", "--cases", "tiny"]) == 1
    assert torch.get_num_threads() == threads
    assert "1 DIFFER" in capsys.readouterr().out


def test_the_host_works_as_long_as_it_is_told():
    assert overlap.toil(0) == 0
    assert overlap.toil(2) == sum(number % 7 for number in range(50))
