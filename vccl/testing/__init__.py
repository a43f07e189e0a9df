"""Tests on many ranks, for pytest. docs/testing.md describes them."""

from .helpers import assert_same_on_all_ranks, expect_error_on, isolated_store, kill_rank, on_rank
from .session import CALL_TIMEOUT, RankFailed, RankPool, RanksWarning
from .wanted import GROUP_TIMEOUT
from .world import World, current

__all__ = [
    "CALL_TIMEOUT",
    "GROUP_TIMEOUT",
    "RankFailed",
    "RankPool",
    "RanksWarning",
    "World",
    "assert_same_on_all_ranks",
    "current",
    "expect_error_on",
    "isolated_store",
    "kill_rank",
    "on_rank",
]
