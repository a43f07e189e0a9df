"""Every racing program is found with its lines, and its repaired twin is not blamed."""

import pytest
import racing_collectives
import racing_memory
import racing_programs
import racing_streams
import racing_views
from racing import Program, judge

PROGRAMS = [
    *racing_streams.PROGRAMS,
    *racing_views.PROGRAMS,
    *racing_memory.PROGRAMS,
    *racing_programs.PROGRAMS,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: Program):
    judge(program)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", racing_collectives.PROGRAMS)
def test_program_of_ranks(ranks, program: Program):
    judge(program)
