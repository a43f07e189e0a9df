"""The matrix (matrix.py) in every place, and its tables in docs/collectives.md."""

import matrix
import matrix_table
import pytest
import torch
from matrix import Cell, Report
from matrix_table import SETTINGS, Setting

from vccl import _C
from vccl.testing import RankPool

FOUND: dict[Setting, list[Report]] = {}


def find(rank_pool: RankPool, setting: Setting) -> list[Report]:
    if setting not in FOUND:
        FOUND[setting] = matrix_table.run_setting(rank_pool, setting)
    return FOUND[setting]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_cell(rank_pool, setting):
    reports = find(rank_pool, setting)
    wrong = [f"rank {rank}: {text}" for rank, report in enumerate(reports) for text in report.wrong]
    assert not wrong, "\n".join(wrong[:20])
    cells = [(c.__name__, d, op) for c, d, op in matrix.cells(setting.device, setting.collectives())]
    expected = {(*cell, layout) for cell in cells for layout in setting.layouts()}
    assert cells and all(report.right == expected for report in reports)


def test_every_algorithm_is_there():
    assert {name for name, _ in _C._algorithms()} == set(matrix_table.ALGORITHMS)


def test_the_page_says_what_was_found(rank_pool, request):
    found = {setting: find(rank_pool, setting) for setting in SETTINGS}
    if request.config.getoption("write_tables", False):
        matrix_table.write(matrix_table.render(found))
    assert matrix_table.committed() == matrix_table.render(found), (
        "docs/collectives.md is not what the matrix finds; "
        "python tests/distributed/collectives/matrix_table.py writes it"
    )


class Idle:
    """A group that does nothing."""

    def __getattr__(self, method):
        return lambda *arguments: None


@pytest.mark.parametrize("collective", matrix.REDUCING + matrix.MOVING, ids=lambda c: c.__name__)
def test_a_group_that_does_nothing_is_found_out(collective):
    for other, dtype, op in matrix.cells("cpu", [matrix.underlying(collective)]):
        if other is not collective:
            continue
        wrong = []
        for size in range(2, 6):
            for rank in range(size):
                cell = Cell(Idle(), rank, size, "cpu", "contiguous", dtype, op, True, [])
                collective(cell)
                wrong += cell.wrong
        assert wrong, f"{dtype} {op}"


def test_reference():
    """The reference itself, by hand."""
    int8 = [torch.tensor([100, -128, 7], dtype=torch.int8), torch.tensor([100, -1, -10], dtype=torch.int8)]
    for op, result in {
        "SUM": [-56, 127, -3],
        "AVG": [-28, 63, -1],
        "PRODUCT": [16, -128, -70],
        "MIN": [100, -128, -10],
        "BXOR": [0, 127, -15],
    }.items():
        assert matrix.combined(int8, "int8", op).tolist() == result, op
    large = [torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([1], dtype=torch.uint64)]
    assert matrix.combined(large, "uint64", "MAX").tolist() == [2**64 - 1]
    assert matrix.combined(large, "uint64", "SUM").tolist() == [0]
    bits = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    assert matrix.combined(bits, "bool", "SUM").tolist() == [True, True, False]
    assert matrix.combined(bits, "bool", "BXOR").tolist() == [False, True, False]
    halves = [torch.tensor([3.0]), torch.tensor([4.0]), torch.tensor([5.0])]
    assert matrix.combined(halves, "float32", "PREMUL_SUM").tolist() == [2 * 3.0 - 4.0 + 2 * 5.0]
    assert matrix.combined(halves, "float32", "AVG").tolist() == [4.0]
