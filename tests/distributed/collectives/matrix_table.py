"""What the matrix has found, as the tables of docs/collectives.md.

`python tests/distributed/collectives/matrix_table.py` runs it and writes them; test_matrix.py fails if they
are not what it finds.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Iterable, Mapping

import pytest
from matrix import DTYPES, LAYOUTS, MEANINGS, MOVING, OPS, REDUCING, Report, run_matrix

from vccl import _C
from vccl.testing import RankPool

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "collectives.md"
BEGIN, END = "<!-- found by the matrix test -->\n", "<!-- end -->\n"

TITLES = {
    "all_reduce_sparse": "all_reduce of sparse (COO) tensors",
    "reduce_scatter": "reduce_scatter, equal chunks",
    "reduce_scatter_uneven": "reduce_scatter, uneven chunks",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "all_gather": "all_gather, equal chunks",
    "all_gather_uneven": "all_gather, uneven chunks",
    "all_to_all": "all_to_all, uneven chunks",
    "all_to_all_single": "all_to_all_single, equal chunks",
    "all_to_all_single_with_splits": "all_to_all_single, with splits",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where the matrix is run."""

    device: str
    layout: str  # the host of each rank: "AAB" has two ranks on one host and one on another
    algorithm: str

    @property
    def size(self) -> int:
        return len(self.layout)

    def host_ids(self) -> list[str]:
        return [f"host {host}" for host in self.layout] if self.spreads() else []

    def spreads(self) -> bool:
        """Whether there are several hosts."""
        return len(set(self.layout)) > 1

    def place(self) -> tuple[str, bool]:
        return self.device, self.spreads()

    def world(self) -> str:
        """ "4" for ranks of one host, "2x2" or "3+1" for those of several."""
        ranks = [self.layout.count(host) for host in sorted(set(self.layout))]
        if not self.spreads():
            return str(self.size)
        return f"{len(ranks)}x{ranks[0]}" if len(set(ranks)) == 1 else "+".join(map(str, ranks))

    def collectives(self) -> set[str]:
        """Those that the algorithm is for."""
        return {collective for name, collective in _C._algorithms() if name == self.algorithm}

    def layouts(self) -> list[str]:
        """A collective always gets contiguous memory: one algorithm and one world size show that it does."""
        return LAYOUTS if self.algorithm == "ring" and self.layout in ("AAA", "AABA") else LAYOUTS[:1]


PLACES = {
    ("vdev", False): "vdev, one host (mapped memory)",
    ("cpu", False): "cpu, one host (shared slots)",
    ("vdev", True): "vdev, several hosts (ZeroMQ)",
    ("cpu", True): "cpu, several hosts (ZeroMQ)",
}
# Where they work.
ALGORITHMS: dict[str, list[tuple[str, bool]]] = {
    "ring": list(PLACES),
    "direct": [("vdev", False)],
    "oneshot": list(PLACES),
    "staged": [("cpu", False)],
    "hierarchical": [("vdev", True)],
}
# Ranks of a host follow each other or do not, and hosts have equally many or do not.
HOSTS = ["A", "AA", "AAA", "AAAA", "AAAAA", "AB", "ABAB", "AABA", "ABBC", "ABCD"]
SETTINGS = [
    setting
    for layout in HOSTS
    for place in PLACES
    for algorithm in ALGORITHMS
    if (setting := Setting(place[0], layout, algorithm)).place() in ALGORITHMS[algorithm]
    if setting.place() == place
]
Reports = Mapping[Setting, list[Report]]


def run_setting(rank_pool: RankPool, setting: Setting) -> list[Report]:
    return rank_pool.run(
        setting.size,
        run_matrix,
        setting.device,
        setting.collectives(),
        setting.layouts(),
        hosts=setting.host_ids(),
        env={"VCCL_ALGO": ";".join(f"{c}:{setting.algorithm}" for c in sorted(setting.collectives()))},
    )


def listed(names: Iterable[str], of: list[str]) -> str:
    """ "all", "all but a, b" or "a, b", whichever is shortest."""
    names = set(names)
    missing = [name for name in of if name not in names]
    if not missing:
        return "all"
    there = ", ".join(name for name in of if name in names)
    but = "all but " + ", ".join(missing)
    return min(there, but, key=len)


def right_in(reports: list[Report], collective: str) -> set[tuple]:
    """The cells of the collective that were right on every rank."""
    on_all = set.intersection(*(report.right for report in reports))
    return {cell[1:] for cell in on_all if cell[0] == collective}


def rows_of_collectives(found: Reports) -> list[list[str]]:
    rows = []
    for collective in [function.__name__ for function in REDUCING + MOVING]:
        right = {setting: right_in(reports, collective) for setting, reports in found.items()}
        everything = set.union(*right.values())
        dtypes = {dtype for dtype, _, _ in everything}
        pairs = {(dtype, op) for dtype, op, _ in everything if op}
        row = [TITLES.get(collective, collective), listed(dtypes, DTYPES)]
        if not pairs:
            row.append("")
        elif pairs == {(dtype, op) for dtype in dtypes for op in MEANINGS[dtype]}:
            row.append("all of the second table")
        else:
            row.append(listed({op for _, op in pairs}, OPS))
        assert everything == {(d, op, layout) for d, op, _ in everything for layout in LAYOUTS}
        whole = {
            setting
            for setting in right
            if right[setting] == {cell for cell in everything if cell[2] in setting.layouts()}
        }
        row += [worlds({setting for setting in whole if setting.place() == place}) for place in PLACES]
        rows.append(row)
    return rows


def worlds(settings: set[Setting]) -> str:
    """ "ring: 1 2 3"."""
    texts = []
    for algorithm in ALGORITHMS:
        here = sorted(settings, key=lambda setting: HOSTS.index(setting.layout))
        names = [setting.world() for setting in here if setting.algorithm == algorithm]
        texts += [f"{algorithm}: {' '.join(names)}"] if names else []
    return "; ".join(texts) or "-"


def rows_of_dtypes(found: Reports) -> list[list[str]]:
    # The ring has every collective everywhere.
    everywhere = {setting: each for setting, each in found.items() if setting.algorithm == "ring"}
    reports = [report for each in everywhere.values() for report in each]
    reducing = {function.__name__ for function in REDUCING} - {"all_reduce_sparse"}
    moving = {function.__name__ for function in MOVING}

    def right(collectives: set[str], dtype: str, op: str | None) -> bool:
        def cells(setting: Setting) -> set[tuple]:
            return {(c, dtype, op, layout) for c in collectives for layout in setting.layouts()}

        return all(cells(setting) <= report.right for setting, each in everywhere.items() for report in each)

    rows = []
    for dtype in DTYPES:
        row = [dtype, "yes" if right(moving, dtype, None) else "no"]
        for op in OPS:
            refused = all((dtype, op) in report.refused for report in reports)
            row.append("yes" if right(reducing, dtype, op) else "-" if refused else "no")
        rows.append(row)
    return rows


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def render(found: Reports) -> str:
    return (
        table(["collective", "dtypes", "reductions", *PLACES.values()], rows_of_collectives(found))
        + "\n"
        + table(["dtype", "moved", *OPS], rows_of_dtypes(found))
    )


def committed() -> str:
    """The tables of the page."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def write(text: str) -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(pytest.main([str(pathlib.Path(__file__).with_name("test_matrix.py")), "--write-tables"]))
