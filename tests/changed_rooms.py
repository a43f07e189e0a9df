"""Finds the torch-free rooms that recent changes concern, so that CI runs their tests alone under sanitizers.

VCCL_TEST_CHANGED=1 asks for that. Changes count from the commit that VCCL_TEST_SINCE names. Without it they
count from the last commit that is a day older than the newest one, because the daily job runs everything.
"""

import os
import subprocess
from pathlib import Path

from rooms import Room, read_rooms

ROOT = Path(__file__).resolve().parent.parent
DAY = 24 * 60 * 60
# A change of one of these may change every program.
EVERYTHING = ("CMakeLists.txt", "rooms.json", "tests/native/CMakeLists.txt", "tests/native_build.py")


def folders_to_test(root: Path = ROOT) -> set[str]:
    """Returns the folders of tests/native that changes concern: all of them where git does not know."""
    rooms = read_rooms(root)
    everything = {room.tests for room in rooms.values() if room.tests}
    changed = changed_files(root)
    if changed is None or any(path in EVERYTHING for path in changed):
        return everything
    return {folder for path in changed for folder in folders_of(path, rooms, everything)}


def folders_of(path: str, rooms: dict[str, Room], everything: set[str]) -> set[str]:
    """Returns the folders whose tests a change of one file concerns."""
    if path.startswith("tests/native/"):
        folder = path.split("/")[2]
        return {folder} if folder in everything else everything  # a file beside the folders is for all
    # By its name, because a folder that rooms.json no longer names belonged to the room around it.
    around = [room for room in rooms.values() if path.startswith(room.name + "/")]
    own = max(around, key=lambda room: len(room.name), default=None)
    if own is None or not own.library or not path.endswith((".cpp", ".hpp", ".h")):
        return set()
    return {room.tests for room in rooms.values() if room.library and uses(room, own, rooms)}


def uses(room: Room, other: Room, rooms: dict[str, Room]) -> bool:
    """Whether a room is `other`, or includes it directly or through rooms between them."""
    return room == other or any(uses(rooms[below], other, rooms) for below in room.may_include)


def changed_files(root: Path) -> set[str] | None:
    """Returns the files that differ from the commit from which changes count, or None if git has none."""
    since = os.environ.get("VCCL_TEST_SINCE") or _a_day_before_the_newest(root)
    if since is None:
        return None
    committed = _git(root, "diff", "--name-only", "--no-renames", since)
    added = _git(root, "ls-files", "--others", "--exclude-standard")
    if committed is None or added is None:
        return None
    return {*committed.splitlines(), *added.splitlines()}


def _a_day_before_the_newest(root: Path) -> str | None:
    newest = _git(root, "log", "-1", "--format=%ct")
    if newest is None:
        return None
    found = _git(root, "log", "-1", "--format=%H", f"--before={int(newest) - DAY}")
    return (found or "").strip() or None


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None
