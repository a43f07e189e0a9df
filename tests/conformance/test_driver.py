"""The conformance driver reports what it has to: a test that cannot fail would be worth nothing."""

import contextlib
import os
import pathlib

import expected
import pytest
import run

WORLD = 3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Every outcome of faulty_suite.py, by test, and the folder in which its ranks have left their traces."""
    folder = tmp_path_factory.mktemp("witnesses")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONFORMANCE_WITNESSES", str(folder))
        patch.setattr(run, "TEST_SECONDS", 6)
        found = run.results("vccl", "cpu", WORLD, [], folder / "log", suite="faulty_suite:Faulty")
        return {"folder": folder, **{result["test"]: result for result in found}}


def test_a_body_runs_in_every_rank(outcomes: dict) -> None:
    assert outcomes["test_passes_and_tells"]["outcome"] == "passed"
    witnesses = sorted(path.name for path in outcomes["folder"].glob("rank-*"))
    assert witnesses == [f"rank-{rank}-of-{WORLD}" for rank in range(WORLD)]
    assert len({path.read_text() for path in outcomes["folder"].glob("rank-*")}) == WORLD


def test_a_failure_of_any_rank_is_reported(outcomes: dict) -> None:
    result = outcomes["test_fails_on_the_last_rank"]
    assert result["outcome"] == "failed"
    assert "the failure that the driver has to report" in result["text"]


def test_a_skip_is_reported_with_its_reason(outcomes: dict) -> None:
    assert outcomes["test_is_skipped"]["outcome"] == "skipped"
    assert outcomes["test_is_skipped"]["text"] == "the reason that the driver has to report"
    assert outcomes["test_is_skipped_by_the_ranks"]["outcome"] == "skipped"


@pytest.mark.parametrize("test", ["test_dies_on_the_last_rank", "test_exits_early_on_the_last_rank"])
def test_an_end_that_only_one_rank_meets_is_reported(outcomes: dict, test: str) -> None:
    assert outcomes[test]["outcome"] == "failed"
    assert "the ranks ended differently" in outcomes[test]["text"]


def test_a_hang_is_ended_with_all_that_it_has_started(outcomes: dict) -> None:
    assert outcomes["test_hangs_and_leaves_a_child"]["outcome"] == "failed"
    children = [int(path.name.removeprefix("child-")) for path in outcomes["folder"].glob("child-*")]
    assert len(children) == WORLD
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 0)
            pytest.fail(f"process {child} is still there")


def entry(outcome: str, says: str, test: str) -> expected.Entry:
    return expected.Entry(outcome, ("cpu",), (WORLD,), "a reason", says, (test,))


SKIPPED = {"test": "test_a", "outcome": "skipped", "text": "no GPU"}
FAILED = {"test": "test_a", "outcome": "failed", "text": "ValueError: of that kind"}
PASSED = {"test": "test_a", "outcome": "passed", "text": ""}


@pytest.mark.parametrize(
    ("listed", "result", "difference"),
    [
        ([], PASSED, None),
        ([], FAILED, "test_a failed: ValueError: of that kind"),
        ([], SKIPPED, "test_a skipped: no GPU"),
        ([entry("skipped", "no GPU", "test_a")], SKIPPED, None),
        ([entry("failed", "of that kind", "test_a")], FAILED, None),
        ([entry("failed", "of another", "test_a")], FAILED, "for another reason"),
        ([entry("failed", "no GPU", "test_a")], SKIPPED, "listed as failed"),
        ([entry("skipped", "no GPU", "test_a")], PASSED, "take it off the list"),
    ],
)
def test_what_differs_from_the_list_is_told(listed: list, result: dict, difference: str | None) -> None:
    lines = expected.differences(listed, "cpu", WORLD, [result])
    assert len(lines) == (difference is not None)
    assert not lines or difference in lines[0]
    # An entry for another device or number of ranks says nothing about this one.
    elsewhere = expected.differences(listed, "vdev", WORLD, [result])
    assert elsewhere == expected.differences([], "vdev", WORLD, [result])


def test_a_listed_test_that_does_not_exist_is_told() -> None:
    assert expected.unknown([entry("failed", "x", "test_a")], [PASSED]) == []
    assert len(expected.unknown([entry("failed", "x", "test_b")], [PASSED])) == 1


def test_an_entry_needs_a_reason(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text('[[failed]]\ndevices=["cpu"]\nworlds=[2]\nreason=""\nsays="x"\ntests=["test_a"]\n')
    with pytest.raises(ValueError, match="reason"):
        expected.read(file)


def test_a_test_is_listed_once(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "expected.toml"
    table = '[[failed]]\ndevices=["cpu"]\nworlds=[2]\nreason="r"\nsays="x"\ntests=["test_a"]\n'
    file.write_text(table + table)
    with pytest.raises(ValueError, match="twice"):
        expected.read(file)
