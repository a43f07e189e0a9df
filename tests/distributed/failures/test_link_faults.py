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
