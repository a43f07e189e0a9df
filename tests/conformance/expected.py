"""The committed list of tests that do not pass (expected.toml), and how a run differs from it."""

import dataclasses
import pathlib
import sys
from collections.abc import Iterable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = pathlib.Path(__file__).with_name("expected.toml")


@dataclasses.dataclass(frozen=True)
class Entry:
    """Tests with one outcome, "skipped" or "failed", for one reason."""

    outcome: str
    devices: tuple[str, ...]
    worlds: tuple[int, ...]
    reason: str
    says: str
    """A part of what upstream's skip or the failure says: another cause is another entry."""
    tests: tuple[str, ...]


def read(file: pathlib.Path = FILE) -> list[Entry]:
    """The list.

    Raises:
        ValueError: a test is listed twice for a device and a world size, or an entry has no reason.
    """
    entries = []
    listed = set()
    for outcome, tables in tomllib.loads(file.read_text()).items():
        for table in tables:
            entry = Entry(
                outcome,
                tuple(table["devices"]),
                tuple(table["worlds"]),
                table["reason"],
                table["says"],
                tuple(table["tests"]),
            )
            if outcome not in ("skipped", "failed") or not entry.reason or not entry.says:
                raise ValueError(
                    f"{file}: {outcome} {entry.reason!r}: lacks an outcome, a reason or what it says"
                )
            for test in entry.tests:
                for place in ((test, device, world) for device in entry.devices for world in entry.worlds):
                    if place in listed:
                        raise ValueError(f"{file}: {place} is listed twice")
                    listed.add(place)
            entries.append(entry)
    return entries


def differences(entries: Iterable[Entry], device: str, world: int, results: Iterable[dict]) -> list[str]:
    """What a run on `device` with `world` ranks has against the list: one line each, nothing if they agree.

    Args:
        results: {test, outcome, text} of each test that was run.
    """
    listed = {
        test: entry
        for entry in entries
        if device in entry.devices and world in entry.worlds
        for test in entry.tests
    }
    lines = []
    for result in results:
        name, outcome, text = result["test"], result["outcome"], result["text"]
        entry = listed.get(name)
        if entry is None:
            if outcome != "passed":
                lines.append(f"{name} {outcome}: {last_line(text)}")
        elif outcome == "passed":
            lines.append(f"{name} passes: take it off the list ({entry.reason})")
        elif outcome != entry.outcome:
            lines.append(f"{name} {outcome}, but is listed as {entry.outcome}: {last_line(text)}")
        elif entry.says not in text:
            lines.append(f"{name} {outcome} for another reason than listed: {last_line(text)}")
    return lines


def unknown(entries: Iterable[Entry], results: Iterable[dict]) -> list[str]:
    """What is listed and is no test of the suite, given the results of all its tests: one line each."""
    tests = {result["test"] for result in results}
    listed = {test for entry in entries for test in entry.tests}
    return [f"{test} is listed, and there is no such test" for test in sorted(listed - tests)]


def last_line(text: str) -> str:
    """The line of a traceback that says what was wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line[:1].isalpha() and "Error: " in line]
    ranks = [line for line in errors if not line.startswith("RuntimeError: Process ")]
    return (ranks or errors or lines or ["no text"])[0][:400]
