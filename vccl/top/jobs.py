"""What ``vccl.top`` knows of the jobs of this user, as one dict. docs/hangs.md describes it."""

import contextlib
from typing import Any

from vccl import _C
from vccl._libraries import use_found_libraries
from vccl.top import traffic

# For how long ranks that hang are waited for when they are asked for their stacks.
_STACKS_MS = 500


def look(
    *, stacks: bool = True, pid: int | None = None, job: str | None = None, others: bool = True
) -> dict[str, Any]:
    """Returns what the ranks of all jobs do, who waits for whom, and who is to blame.

    Args:
        stacks: whether ranks that others wait for are asked for their Python stacks.
        pid: leaves out jobs without this process, unless None.
        job: leaves out jobs whose id does not begin with this text, unless None.
        others: whether other hosts are asked about the ranks that are not on this machine.
    """
    use_found_libraries()
    found = _C._diagnose(_STACKS_MS if stacks else 0, dumps=True, others=others)
    found["jobs"] = [entry for entry in found["jobs"] if _is_chosen(entry, pid, job)]
    for entry in found["jobs"]:
        dumps = {rank["rank"]: rank.pop("dump") for rank in entry["ranks"]}
        _complete(entry, traffic.of_job(dumps))
    return found


def _is_chosen(job: dict[str, Any], pid: int | None, begin: str | None) -> bool:
    has_pid = pid is None or any(rank["pid"] == pid and not rank["far"] for rank in job["ranks"])
    return has_pid and (begin is None or job["id"].startswith(begin))


def _complete(job: dict[str, Any], flows: dict[str, traffic.Traffic]) -> None:
    for group in job["groups"]:
        flow = flows.get(group["name"], traffic.Traffic())
        group["bytes_per_s"] = flow.bytes_per_second
        group["collectives_per_minute"] = flow.collectives
    for rank in job["ranks"]:
        # Only the cards of this machine are known.
        rank["card_bytes"] = None if rank["far"] else _card_bytes(rank["card"], rank["pid"])
        rank["waited_for_s"] = sum(flow.lost_s.get(rank["rank"], 0.0) for flow in flows.values())
    job["diagnosis"] += traffic.slow_ranks(flows)


def _card_bytes(card: int | None, pid: int) -> int | None:
    """Returns the bytes that the process has reserved of its card, or None if that is not known."""
    if card is None:
        return None
    with contextlib.suppress(RuntimeError, IndexError, ValueError):  # this process may have fewer cards
        return sum(size for user, _foreign, _name, size in _C._card_users(card) if user == pid)
    return None
