"""Random programs of two to four ranks, judged by brute force on each of them (oracle_of_ranks.py).

A program is right as it is written: nobody may be blamed, and what it calculates is compared. Then it is
played again, without one of its waits on each rank. The sanitizer has to say of each access what the oracle
says.

Continuous integration plays few programs. VCCL_TEST_ROUNDS=N plays N of each kind and number of ranks,
VCCL_TEST_SECONDS=N plays for that long, and VCCL_TEST_SEED=N begins with the seed N.
"""

import os
from collections.abc import Iterator

import pytest
from player_of_ranks import Played, play_programs
from random_programs import seeds

ROUNDS = int(os.environ.get("VCCL_TEST_ROUNDS", "10"))
AT_ONCE = 10  # programs in one call of the ranks


def play(rank: int, size: int, numbers: list[int], leave_out: int) -> Played:
    return play_programs(rank, size, numbers, leave_out)


def some_seeds() -> Iterator[list[int]]:
    some: list[int] = []
    for seed in seeds(ROUNDS):
        some.append(seed)
        if len(some) == AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def play_all(rank_pool, size: int, leave_out: int) -> Played:
    total = Played()
    for some in some_seeds():
        of_ranks = rank_pool.run(size, play, some, leave_out)
        failures = [played.failure for played in sorted(of_ranks, key=lambda played: not played.is_wrong)]
        if any(failures):
            pytest.fail("\n\n".join(failures), pytrace=False)
        for played in of_ranks:
            total.add(played)
    print(f"{size} ranks: {total}")
    return total


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_right_program_is_not_blamed(rank_pool, size):
    total = play_all(rank_pool, size, leave_out=0)
    assert total.racing == 0


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_verdict_is_the_oracles(rank_pool, size):
    total = play_all(rank_pool, size, leave_out=3)
    assert total.racing > 0
