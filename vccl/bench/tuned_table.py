"""Turns measured times into ranges, and ranges into the C++ table that the selector reads.

The cost of an algorithm at a size is the logarithm of its time divided by the best time there: 0 for the
best algorithm, and about 0.1 for one that takes 10 % longer. A series of ranges costs what its algorithms
cost at the measured sizes, and SWITCH for each further range. The cheapest series is taken in which no
algorithm has two ranges. So a range exists only if it saves more than SWITCH over all its sizes, and noise
makes no range. If nothing else decides, the algorithm that the selector lists first is taken. Different
numbers of ranks share a series unless separate series save more than they cost.
"""

import functools
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

SWITCH = 0.1
LISTED_LATER = 0.02  # what an algorithm has to save for each place that it is behind the first one
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
MEMORIES = ("mapped", "staged", "mapped_across", "staged_across")  # the last two: with several hosts
WIDTH = 110  # the columns that a line of C++ may have

Costs = dict[int, dict[str, float]]  # by size and algorithm


@dataclass(frozen=True)
class Measured:
    """Holds the times of one collective in microseconds, by size in bytes and algorithm.

    There is one time for each pass. It is None if the pass left the algorithm out as hopeless.
    """

    collective: str
    memory: str
    ranks: int
    times: dict[int, dict[str, list[float | None]]]

    @property
    def key(self) -> tuple[int, int, int]:
        return (COLLECTIVES.index(self.collective), MEMORIES.index(self.memory), self.ranks)

    def costs(self) -> Costs:
        """Returns the mean costs of all passes, so that a bad state of the machine counts too."""
        return {
            size: {name: fmean(passes) for name, passes in ratios(times)}
            for size, times in self.times.items()
        }

    def add(self, size: int, found: Mapping[str, float | None], able: Sequence[str]) -> None:
        """Adds a pass: the times `found` of the algorithms that took part, out of all that are `able`."""
        times = self.times.setdefault(size, {})
        passes = max(map(len, times.values()), default=0)
        for name in dict.fromkeys([*able, *times]):
            times.setdefault(name, [None] * passes).append(found.get(name))

    def add_all(self, other: "Measured") -> None:
        """Adds the passes of another run."""
        for size, times in other.times.items():
            for turn in range(max(map(len, times.values()))):
                found = {name: series[turn] for name, series in times.items() if series[turn] is not None}
                self.add(size, found, list(times))


@dataclass(frozen=True)
class Range:
    """Uses `algorithm` from the end of the range before it to `last` bytes included (None: any size)."""

    algorithm: str
    last: int | None


@dataclass(frozen=True)
class Section:
    """Holds the ranges of one collective in one kind of memory, for `fewest` to `most` (None: any) ranks."""

    collective: str
    memory: str
    fewest: int
    most: int | None
    ranges: tuple[Range, ...]


def ratios(times: Mapping[str, Sequence[float | None]]) -> Iterator[tuple[str, list[float]]]:
    """Yields each algorithm with its cost in each pass that it took part in."""
    best = [min(time for time in turn if time is not None) for turn in zip(*times.values(), strict=True)]
    for name, series in times.items():
        passes = zip(series, best, strict=True)
        yield name, [math.log(time / least) for time, least in passes if time is not None]


def at(costs: Costs, size: int) -> dict[str, float]:
    """Returns the costs at a size, interpolated in log(size) if that size was not measured."""
    if size in costs:
        return costs[size]
    below = max((other for other in costs if other < size), default=None)
    above = min((other for other in costs if other > size), default=None)
    if below is None or above is None:
        (nearest,) = (other for other in (below, above) if other is not None)
        return costs[nearest]
    part = math.log(size / below) / math.log(above / below)
    return {
        name: (1 - part) * cost + part * costs[above][name]
        for name, cost in costs[below].items()
        if name in costs[above]
    }


def together(several: Sequence[Costs]) -> Costs:
    """Returns the sums of costs at the same sizes, for the algorithms that all of them have."""
    found = {}
    for size in several[0]:
        here = [costs[size] for costs in several]
        names = [name for name in here[0] if all(name in one for one in here)]
        found[size] = {name: sum(one[name] for one in here) for name in names}
    return found


def cheapest(costs: Costs) -> tuple[float, tuple[Range, ...]]:
    """Returns the cost of the best series of ranges, and the series."""
    sizes = sorted(costs)

    # Returns the best series from size number `begin` on, without the algorithms in `used`.
    @functools.cache
    def best(begin: int, used: frozenset[str]) -> tuple[float, tuple[Range, ...]]:
        found: tuple[float, tuple[Range, ...]] = (math.inf, ())
        for place, name in enumerate(costs[sizes[begin]]):
            if name in used:
                continue
            cost = SWITCH if begin else LISTED_LATER * place
            for end in range(begin, len(sizes)):
                if name not in costs[sizes[end]]:
                    break
                cost += costs[sizes[end]][name]
                if end + 1 == len(sizes):
                    here: tuple[float, tuple[Range, ...]] = (cost, (Range(name, None),))
                else:
                    rest, ranges = best(end + 1, used | {name})
                    here = (cost + rest, (Range(name, sizes[end]), *ranges))
                # The margin keeps the simpler one of two series whose costs differ by rounding alone.
                if here[0] < found[0] - 1e-9:
                    found = here
        return found

    return best(0, frozenset())


def divisions(count: int) -> Iterator[list[range]]:
    """Yields every way to cut 0 .. count - 1 into ranges, and those with the fewest ranges first."""
    ways = []
    for cuts in range(2 ** (count - 1)):
        ends = [i + 1 for i in range(count - 1) if cuts >> i & 1] + [count]
        ways.append([range(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)])
    yield from sorted(ways, key=len)


def sections(measured: Sequence[Measured]) -> Iterator[Section]:
    """Yields the sections of the table in their order.

    Raises:
        ValueError: some collective was measured in no memory, or with other numbers of ranks than the others.
    """
    by_key = {one.key: one for one in measured}
    for number, collective in enumerate(COLLECTIVES):
        for where, memory in enumerate(MEMORIES):
            counts = numbers_of_ranks(measured, across=memory.endswith("_across"))
            missing = [ranks for ranks in counts if (number, where, ranks) not in by_key]
            if missing or not counts:
                raise ValueError(
                    f"{collective} in {memory} memory was not measured with {missing or 'any'} ranks: "
                    "measure that too before the table is written"
                )
            costs = [by_key[number, where, ranks].costs() for ranks in counts]
            sizes = sorted(set().union(*costs))
            costs = [{size: at(one, size) for size in sizes} for one in costs]
            yield from _sections_of(collective, memory, counts, costs)


def numbers_of_ranks(measured: Sequence[Measured], across: bool) -> list[int]:
    """Returns the numbers of ranks that were measured on one host, or on several."""
    return sorted({one.ranks for one in measured if one.memory.endswith("_across") == across})


def _sections_of(
    collective: str, memory: str, counts: Sequence[int], costs: Sequence[Costs]
) -> Iterator[Section]:
    best: tuple[float, list] = (math.inf, [])
    for blocks in divisions(len(counts)):
        found = [cheapest(together([costs[i] for i in block])) for block in blocks]
        cost = sum(cost for cost, _ in found) + SWITCH * (len(blocks) - 1)
        if cost < best[0] - 1e-9:
            best = (cost, [(block, ranges) for block, (_, ranges) in zip(blocks, found, strict=True)])
    fewest = 1
    for block, ranges in best[1]:
        most = counts[block[-1]]
        yield Section(collective, memory, fewest, None if block[-1] == len(counts) - 1 else most, ranges)
        fewest = most + 1


def header_text(machine: Mapping[str, Any], measured: Sequence[Measured]) -> str:
    """Returns the text of tuned_table.hpp, as clang-format leaves it."""
    here, across = (listed(numbers_of_ranks(measured, across=far)) for far in (False, True))
    title = (
        "Which algorithm is the best one where. Written by `python -m vccl.bench tune` and not by hand: "
        f"measured with {here} ranks of one host, and {across} of several, on {machine['cores']} cores of "
        f"{machine['cpu']}."
    )
    lines = textwrap.wrap(title, WIDTH, initial_indent="// ", subsequent_indent="// ")
    lines += [
        "#pragma once",
        "",
        '#include "csrc_pg/collectives/selection/tuned_range.hpp"',
        "",
        "namespace vccl {",
        "",
    ]
    lines.append("inline constexpr TunedRange kTunedTable[] = {")
    for section in sections(measured):
        most = "kAnyRanks" if section.most is None else section.most
        for one in section.ranges:
            last = "kAnyLength" if one.last is None else bytes_in_cpp(one.last)
            place = f"Collective::{section.collective}, MemoryKind::{section.memory}"
            lines.append(f'    {{{place}, {section.fewest}, {most}, {last}, "{one.algorithm}"}},')
    lines += ["};", "", "}  // namespace vccl"]
    return "\n".join(lines) + "\n"


def listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def bytes_in_cpp(size: int) -> str:
    """Returns a C++ expression such as "2 * 1024 * 1024"."""
    factors = []
    while size > 1024 and size % 1024 == 0:
        size //= 1024
        factors.append("1024")
    return " * ".join([str(size), *factors])


def write_measured(path: Path, machine: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    """Writes {"machine": {...}, "measured": [...]}, with one line for each measurement."""
    lines = []
    for one in sorted(measured, key=lambda one: one.key):
        facts = {name: value for name, value in asdict(one).items() if name != "times"}
        rows = [f'"{size}":{compact(times)}' for size, times in sorted(one.times.items())]
        times = ",\n".join(rows)
        lines.append(f'{json.dumps(facts)[:-1]}, "times": {{\n{times}}}}}')
    body = ",\n".join(lines)
    path.write_text(f'{{"machine": {json.dumps(dict(machine))},\n"measured": [\n{body}\n]}}\n')


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_measured(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Returns the facts and the measurements that write_measured() has written.

    Raises:
        ValueError: write_measured() has not written the file.
    """
    try:
        facts = json.loads(path.read_text())
        measured = [
            Measured(**one | {"times": {int(size): times for size, times in one["times"].items()}})
            for one in facts["measured"]
        ]
        return facts["machine"], sorted(measured, key=lambda one: one.key)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a file that vccl.bench tune wrote: {error!r}") from error
