"""A few of the deaths that random_deaths.py makes: every kind, on one host and on two."""

import collections

import pytest
import random_cases
import random_deaths

CASES = (0, 2, 4, 6, 12, 24, 72, 93)


@pytest.mark.daily
def test_survivors_of_random_deaths(run):
    random_cases.run_in_a_test(run, random_deaths.__file__, CASES)


def test_the_cases_have_every_kind():
    cases = [random_deaths.make_case(number) for number in CASES]
    assert {case.kind for case in cases} == {*random_deaths.ABRUPT, *random_deaths.GENTLE}
    hosts = collections.Counter(len(set(case.hosts)) for case in cases)
    assert min(hosts[1], hosts[2]) >= len(cases) // 3


def test_a_case_follows_from_its_number():
    for number in range(50):
        assert random_deaths.make_case(number) == random_deaths.make_case(number)
