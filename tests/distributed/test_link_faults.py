"""A few of the link faults that random_link_faults.py makes: every kind, on two hosts and on three."""

import os
import sys
from pathlib import Path

import namespaces
import pytest
import random_link_faults

DRIVER = Path(random_link_faults.__file__)
CASES = (1, 2, 4, 7, 10, 15, 16, 20, 36)


def test_ranks_outlive_short_faults_and_name_what_long_ones_cut_off(run):
    if why := namespaces.why_impossible():
        pytest.skip(why)
    # A busy machine gets 12 times the 6 seconds. Who waits for the group's timeout waits half an hour.
    numbers = ",".join(map(str, CASES))
    path = os.pathsep.join(path for path in sys.path if path)
    run(
        [sys.executable, DRIVER, "--cases", numbers, "--slack", "12"],
        timeout=1800,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def test_the_cases_have_every_kind():
    cases = [random_link_faults.make_case(number) for number in CASES]
    assert {case.kind for case in cases} == {*random_link_faults.HARMLESS, *random_link_faults.FATAL}
    assert {case.security for case in cases} == set(random_link_faults.SECURITIES)
    assert {len(set(case.layout)) for case in cases} == {2, 3}


def test_a_case_follows_from_its_number():
    for number in range(50):
        assert random_link_faults.make_case(number) == random_link_faults.make_case(number)
