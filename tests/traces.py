"""Reads the traces of torch.profiler back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    """What happened in one lane, which is a thread of the host or a stream of a card. Times are in ns."""

    category: str
    name: str
    lane: tuple[Any, Any]
    begin: int
    end: int
    args: dict[str, Any]

    @property
    def duration(self) -> int:
        return self.end - self.begin

    def encloses(self, other: "Slice") -> bool:
        """Tells whether the other is within this one, or a step of the clock beside it."""
        return self.begin - 2 <= other.begin and other.end <= self.end + 2

    def __hash__(self) -> int:
        return hash((self.category, self.name, self.lane, self.begin, self.end))


# What a card does. Ranges of the program are on its lanes, too.
RUNS = ("kernel", "gpu_memcpy")


class Trace:
    """One file that ``export_chrome_trace()`` or vccl.merge_traces has written."""

    def __init__(self, path: str | Path) -> None:
        with open(path) as file:
            self.content = json.load(file)
        self.events = self.content["traceEvents"]
        self.slices = [
            Slice(
                event["cat"],
                event["name"],
                (event["pid"], event["tid"]),
                _ns(event["ts"]),
                _ns(event["ts"]) + _ns(event["dur"]),
                event.get("args", {}),
            )
            for event in self.events
            if event.get("ph") == "X"
        ]
        self.lanes = {
            (event["pid"], event["tid"]): event["args"]["name"] for event in self._named("thread_name")
        }
        self.processes = {event["pid"]: event["args"]["name"] for event in self._named("process_name")}

    def _named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("ph") == "M" and event["name"] == name]

    def of(self, *categories: str) -> list[Slice]:
        """The slices of these categories, in the order in which they began."""
        found = [one for one in self.slices if one.category in categories]
        return sorted(found, key=lambda one: (one.begin, -one.end))

    def runs(self, name: str = "") -> list[Slice]:
        """What ran on cards, under names that begin with `name`."""
        return [run for run in self.of(*RUNS) if run.name.startswith(name)]

    def arrows(self) -> list[tuple[Slice, Slice]]:
        """Each arrow from a launch to its run, as the two slices that it connects."""
        starts, ends = (
            {
                event["id"]: event
                for event in self.events
                if event.get("cat") == "ac2g" and event["ph"] == kind
            }
            for kind in "sf"
        )
        assert starts.keys() == ends.keys()
        launches = {_key(one): one for one in self.slices if one.category.endswith("_runtime")}
        runs = {_key(one): one for one in self.slices if not one.category.endswith("_runtime")}
        place = lambda event: ((event["pid"], event["tid"]), _ns(event["ts"]))  # noqa: E731
        return [(launches[place(starts[id])], runs[place(ends[id])]) for id in starts]


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _key(one: Slice) -> tuple[tuple[Any, Any], int]:
    return one.lane, one.begin
