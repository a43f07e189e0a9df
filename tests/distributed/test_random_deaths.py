"""A few of the deaths that random_deaths.py makes: every kind, on one host and on two."""

import collections
import os
import sys
from pathlib import Path

import random_deaths

DRIVER = Path(random_deaths.__file__)
CASES = (0, 2, 4, 6, 12, 24, 72, 93)


def test_survivors_of_random_deaths(run):
    # A busy machine gets 12 times the 5 seconds. Who waits for the group's timeout waits half an hour.
    numbers = ",".join(map(str, CASES))
    path = os.pathsep.join(path for path in sys.path if path)
    run(
        [sys.executable, DRIVER, "--cases", numbers, "--slack", "12"],
        timeout=1800,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def test_the_cases_have_every_kind():
    cases = [random_deaths.make_case(number) for number in CASES]
    assert {case.kind for case in cases} == {*random_deaths.ABRUPT, *random_deaths.GENTLE}
    hosts = collections.Counter(len(set(case.hosts)) for case in cases)
    assert min(hosts[1], hosts[2]) >= len(cases) // 3


def test_a_case_follows_from_its_number():
    for number in range(50):
        assert random_deaths.make_case(number) == random_deaths.make_case(number)
