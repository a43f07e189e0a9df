"""What nccl_rows.py finds, as the table of docs/inside/nccl.md.

`python tests/distributed/collectives/nccl_table.py` runs the rows and writes the table; test_strict.py fails
if the page has another one.
"""

import pathlib
import sys

import pytest
from nccl_rows import ROWS, SIZE, found_on

from vccl.testing import RankPool

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "inside" / "nccl.md"
BEGIN, END = "<!-- found by the test of strict groups -->\n", "<!-- end -->\n"
HEADER = ["call", "NCCL", "strict", "free"]


def run(pool: RankPool, device: str, strict: bool) -> list[str]:
    """Returns what came of each row, on which the ranks agree that say something."""
    env = {"VCCL_STRICT": "nccl" if strict else "0"}
    on_ranks = pool.run(SIZE, found_on, device, strict, env=env)
    found = []
    for row, said in zip(ROWS, zip(*on_ranks, strict=True), strict=True):
        texts = {text for text in said if text is not None}
        found.append(" / ".join(sorted(texts)) or f"nothing of {row.call}")
    return found


def table(strict: list[str], free: list[str]) -> str:
    rows = [
        [row.call, row.nccl, "the same" if one == row.nccl else one, other]
        for row, one, other in zip(ROWS, strict, free, strict=True)
    ]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def committed() -> str:
    """The table of the page."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def write(text: str) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(pytest.main([str(pathlib.Path(__file__).with_name("test_strict.py")), "--write-tables"]))
