"""Rank 2 does not come to a monitored barrier."""

import datetime
import time

from expected import Errors

import vccl

EXPECT = Errors((0,), ("2",))


def job(rank):
    if rank != 2:
        vccl.monitored_barrier(timeout=datetime.timedelta(seconds=2))
    else:
        time.sleep(1000)
