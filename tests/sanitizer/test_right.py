"""No report comes from right programs."""

import importlib

import pytest
from right import Play, assert_nothing_is_reported, of_ranks

for module in ("one_card", "ranks", "pipelines"):
    importlib.import_module(f"right_programs.{module}")


@pytest.mark.parametrize("play", of_ranks(1))
def test_a_program_of_one_process(play: Play):
    assert_nothing_is_reported(play)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("play", of_ranks(2))
def test_a_program_of_two_ranks(ranks, play: Play):
    assert_nothing_is_reported(play)
