"""Finds where a model goes wrong: the first module and operator whose results differ, or are not finite.

``compare`` runs a model on two sides (the card and the CPU, two dtypes, two sets of options) and reports the
first difference. ``track_nonfinite`` watches a program for the operator that first makes NaN or infinity.
``compare_ranks`` names the first tensor that ranks do not have alike. ``dump_operator`` writes the arguments
of an operator to a file, which ``python -m vccl.compare replay FILE`` runs again on the CPU and on the card.

See docs/compare.md.
"""

from vccl.compare.dump import dump_operator, replay
from vccl.compare.nonfinite import NonFinite, track_nonfinite
from vccl.compare.ranks import FirstRank, RanksReport, across_ranks, compare_ranks
from vccl.compare.recording import Recording
from vccl.compare.report import Report
from vccl.compare.runs import compare, record
from vccl.compare.sides import Side
from vccl.compare.tolerance import Difference, Tolerance

__all__ = [
    "Difference",
    "FirstRank",
    "NonFinite",
    "RanksReport",
    "Recording",
    "Report",
    "Side",
    "Tolerance",
    "across_ranks",
    "compare",
    "compare_ranks",
    "dump_operator",
    "record",
    "replay",
    "track_nonfinite",
]
