"""Every racing program of one process is reported by its lines, and its repaired form is not."""

import importlib

import pytest
from pairs import Program, judge, of_ranks

SUBJECTS = (
    "streams",
    "operators",
    "events",
    "host_memory",
    "views",
    "allocator",
    "graphs",
    "threads",
    "autograd",
    "cusan",
    "real_bugs",
    "public_code",
)
for subject in SUBJECTS:
    importlib.import_module(f"programs.{subject}")

programs = pytest.mark.parametrize("program", of_ranks(1))


@programs
def test_the_racing_form_is_reported(program: Program):
    judge(program, repaired=False)


@programs
def test_the_repaired_form_is_not_reported(program: Program):
    judge(program, repaired=True)
