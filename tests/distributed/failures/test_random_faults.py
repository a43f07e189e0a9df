"""A few of the faults that random_faults.py makes: every kind."""

import random_cases
import random_faults

CASES = range(24)


def test_no_fault_hangs_ranks_or_gives_wrong_numbers(run):
    random_cases.run_in_a_test(run, random_faults.__file__, CASES)


def test_the_cases_have_every_kind():
    kinds = {random_faults.make_case(number).kind for number in CASES}
    wanted = {*random_faults.HELD_UP, *random_faults.ENDED, *random_faults.RAISED, *random_faults.DAMAGING}
    assert kinds == wanted
