"""Every racing program of several ranks is reported by its lines, and its repaired form is not."""

import importlib

import pytest
from pairs import Program, judge, of_ranks

for subject in ("collectives", "messages", "hooks", "cusan_ranks", "public_code"):
    importlib.import_module(f"programs.{subject}")

programs = pytest.mark.parametrize("program", of_ranks(2))


@programs
@pytest.mark.ranks(2)
def test_the_racing_form_is_reported(program: Program, ranks):
    judge(program, repaired=False, rank=ranks.rank)


@programs
@pytest.mark.ranks(2)
def test_the_repaired_form_is_not_reported(program: Program, ranks):
    judge(program, repaired=True, rank=ranks.rank)
