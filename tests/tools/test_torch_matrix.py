"""`make matrix` counts what a suite reports, and says what failed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch_matrix as matrix

SUITE = """
import pytest
def test_passes(): pass
@pytest.mark.parametrize("number", [1, 2])
def test_fails(number): assert number == 2
def test_is_skipped(): pytest.skip("not today")
@pytest.fixture
def broken(): raise RuntimeError
def test_has_an_error(broken): pass
"""


def test_counts_of_a_suite(tmp_path):
    (tmp_path / "test_of_all_kinds.py").write_text(SUITE)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", tmp_path]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == 1
    result = matrix.Result("2.13.0", "3.11.7", "device", seconds=90)
    matrix.read(report, result)
    assert (result.passed, result.failed, result.skipped) == (2, 2, 1)
    text = matrix.table([result])
    assert "| 2.13.0 | 3.11.7 | device | 2 | 2 | 1 | 1.5 |  |" in text
    assert "torch 2.13.0, device: test_of_all_kinds::test_fails[1]" in text


def test_suites_lie_where_they_are_run():
    files = [Path(path) for paths in matrix.SUITES.values() for path in paths]
    assert files and all((matrix.ROOT / path).exists() for path in files)


@pytest.mark.parametrize("keep", [False, True])
def test_a_version_that_cannot_be_built_is_a_failure(tmp_path, monkeypatch, capsys, keep):
    made = []

    def make(environment):
        environment.folder = tmp_path / environment.version
        environment.folder.mkdir()
        made.append(environment.folder)
        return "not built: see its log"

    monkeypatch.setattr(matrix.Environment, "make", make)
    assert matrix.main(["2.99.0", "2.98.0", *(["--keep"] if keep else [])]) == 1
    text = capsys.readouterr().out
    assert "| 2.99.0 |" in text and "| 2.98.0 |" in text and "not built: see its log" in text
    assert [folder.exists() for folder in made] == [keep, keep]


def test_an_unknown_suite_is_refused(capsys):
    with pytest.raises(SystemExit):
        matrix.main(["2.13.0", "--suites", "device,cooking"])
    assert "there is no suite cooking" in capsys.readouterr().err
