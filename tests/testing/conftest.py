"""Runs pytest on files of tests that are written for the occasion, and reads what became of them."""

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Run:
    """A run of pytest that has ended."""

    outcomes: dict[str, str]  # by the test's name: passed, failed, error, skipped
    output: str
    pids: list[int]  # of all ranks that wrote one to the file "pids"

    def told(self, name: str) -> str:
        """What pytest shows of a test that failed."""
        headline = f"_ {name} _"
        assert headline in self.output, self.output
        return self.output.split(headline, 1)[1].split("\n____", 1)[0].split("\n====", 1)[0]


@pytest.fixture
def inner_pytest(run: Callable[..., str], tmp_path: Path) -> Callable[..., Run]:
    """inner_pytest(source, *options) runs pytest on a file with that text, which may leave nothing behind."""

    def inner_pytest(
        source: str, *options: str, status: int | None = 0, env: dict | None = None, other: str | None = None
    ) -> Run:
        files = [tmp_path / "test_inner.py"]
        files[0].write_text(source)
        if other is not None:
            files.append(tmp_path / "test_other.py")
            files[1].write_text(other)
        results = tmp_path / "results.xml"
        # pytest looks for its options in the folders above, and finds these.
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = ignore:Module already imported\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        variables = {"PYTEST_ADDOPTS": None, "PYTEST_XDIST_WORKER": None, "PIDS": str(tmp_path / "pids")}
        output = run(
            [*command, *options, *files], status=status, env={**variables, **(env or {})}, cwd=tmp_path
        )
        pids = tmp_path / "pids"
        numbers = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
        left = [pid for pid in numbers if os.path.exists(f"/proc/{pid}")]
        assert not left, f"the ranks {left} still run:\n{output}"
        return Run(_outcomes(results), output, numbers)

    return inner_pytest


def _outcomes(results: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        tags = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[case.attrib["name"]] = {"failure": "failed"}.get(*tags, *tags) if tags else "passed"
    return found
