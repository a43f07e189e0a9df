"""A few of the link faults that random_link_faults.py makes: every kind, on two hosts and on three."""

import namespaces
import pytest
import random_cases
import random_link_faults

CASES = (1, 2, 4, 7, 10, 15, 16, 20, 36)


@pytest.mark.daily
def test_ranks_outlive_short_faults_and_name_what_long_ones_cut_off(run):
    if why := namespaces.why_impossible():
        pytest.skip(why)
    random_cases.run_in_a_test(run, random_link_faults.__file__, CASES)


def test_the_cases_have_every_kind():
    cases = [random_link_faults.make_case(number) for number in CASES]
    assert {case.kind for case in cases} == {*random_link_faults.HARMLESS, *random_link_faults.FATAL}
    assert {case.security for case in cases} == set(random_link_faults.SECURITIES)
    assert {len(set(case.layout)) for case in cases} == {2, 3}


def test_a_case_follows_from_its_number():
    for number in range(50):
        assert random_link_faults.make_case(number) == random_link_faults.make_case(number)


LAST_OPERATIONS = """
import os
import torch, torch.distributed as dist
from vccl import faults

for victim in (0, 1, 2, 0, 1, 2):
    dist.init_process_group("vccl")
    dist.all_reduce(torch.ones(4))
    with faults.plan(f"rank={victim},op=all_reduce,at=before,do=cut-link:0.4"):
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.eq(3).all()
        dist.destroy_process_group()
"""


def test_links_that_are_cut_in_the_last_operation(vrun, tmp_path):
    """Who has all blocks leaves at once, while others may have lost theirs and need the links."""
    (tmp_path / "ranks.py").write_text(LAST_OPERATIONS)
    vrun("--hosts", 3, "--cards", 1, "ranks.py")
