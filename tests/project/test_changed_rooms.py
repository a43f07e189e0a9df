"""Which native tests the sanitizers run after a change, and which tests the daily job runs alone."""

import ast
import subprocess
from pathlib import Path

import changed_rooms
import pytest
from rooms import read_rooms

ROOT = Path(__file__).resolve().parents[2]
ROOMS = read_rooms(ROOT)
EVERYTHING = {room.tests for room in ROOMS.values() if room.tests}


@pytest.mark.parametrize(
    ("path", "folders"),
    [
        ("base/clock.hpp", EVERYTHING),
        ("transport/host/waiter.cpp", {"transport", "collectives", "benchmark"}),
        ("csrc_pg/collectives/ring/ring.hpp", {"collectives"}),
        ("csrc_device/runtime/card.cpp", {"runtime"}),
        ("transport/a_folder_that_was/gone.cpp", {"transport", "collectives", "benchmark"}),
        ("tests/native/transport/host/test_peers.cpp", {"transport"}),
        ("tests/native/check.hpp", EVERYTHING),
        ("csrc_pg/tasks/outcome.cpp", set()),
        ("transport/README.md", set()),
        ("vccl/__init__.py", set()),
    ],
)
def test_folders_that_a_change_concerns(path, folders):
    assert changed_rooms.folders_of(path, ROOMS, EVERYTHING) == folders


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with the project's rooms. Returns a function that commits a file at an hour."""

    def git(*arguments, **env):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, "-C", tmp_path, *arguments], check=True, env=env or None)

    def commit(path, hour):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{hour}\n")
        git("add", ".")
        date = f"2026-01-0{1 + hour // 24}T{hour % 24:02}:00:00Z"
        git("commit", "-qm", path, GIT_COMMITTER_DATE=date, GIT_AUTHOR_DATE=date)

    monkeypatch.delenv("VCCL_TEST_SINCE", raising=False)
    git("init", "-q")
    (tmp_path / "rooms.json").write_text((ROOT / "rooms.json").read_text())
    commit.path = tmp_path
    return commit


def test_changes_count_from_a_day_before_the_newest_commit(repository, monkeypatch):
    repository("base/old.cpp", 0)
    assert changed_rooms.folders_to_test(repository.path) == EVERYTHING  # nothing is older than a day
    repository("transport/more.cpp", 20)
    repository("csrc_device/runtime/new.cpp", 30)
    concerned = {"transport", "collectives", "benchmark", "runtime"}
    assert changed_rooms.folders_to_test(repository.path) == concerned
    monkeypatch.setenv("VCCL_TEST_SINCE", "HEAD~1")
    assert changed_rooms.folders_to_test(repository.path) == {"runtime"}
    (repository.path / "csrc_pg" / "collectives").mkdir(parents=True)
    (repository.path / "csrc_pg" / "collectives" / "added.cpp").write_text("")
    assert changed_rooms.folders_to_test(repository.path) == {"runtime", "collectives"}
    repository("CMakeLists.txt", 31)
    assert changed_rooms.folders_to_test(repository.path) == EVERYTHING


def test_without_git_everything_counts_as_changed(tmp_path, monkeypatch):
    monkeypatch.delenv("VCCL_TEST_SINCE", raising=False)
    (tmp_path / "rooms.json").write_text((ROOT / "rooms.json").read_text())
    assert changed_rooms.folders_to_test(tmp_path) == EVERYTHING


def daily_cases():
    """Yields the file, or the file and the test, of every mark `daily`."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        text = file.read_text()
        if "mark.daily" not in text:
            continue
        name = str(file.relative_to(ROOT))
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and "mark.daily" in ast.unparse(node):
                yield name
            elif isinstance(node, ast.FunctionDef) and "mark.daily" in "".join(
                map(ast.unparse, node.decorator_list)
            ):
                yield f"{name}::{node.name}"


def test_the_page_lists_what_runs_once_a_day():
    page = (ROOT / "tests" / "README.md").read_text().partition("## Cases that run only once a day")[2]
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `tests/")}
    assert listed == set(daily_cases())
