"""An agent that waits for the ranks of other hosts hears signals."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server import api

from vccl.launch import exit_barrier


class Ended(Exception):
    pass


def test_a_signal_ends_the_barrier():
    store = dist.HashStore()

    def handler(number, frame):
        raise Ended

    def send() -> None:
        while not store.check(["alone/num_members"]):  # HashStore.wait() does not hear of add()
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with exit_barrier.hears_signals(), pytest.raises(Ended):
            api.store_util.barrier(store=store, world_size=2, key_prefix="alone", barrier_timeout=600)
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, previous)
        store.set("alone/last_member", "<val_ignored>")  # lets the thread of the barrier go


def test_the_barrier_ends_with_its_last_member_or_its_error():
    store = dist.HashStore()
    with exit_barrier.hears_signals():
        api.store_util.barrier(store=store, world_size=1, key_prefix="whole")
        store.set_timeout(timedelta(seconds=5))
        with pytest.raises(dist.DistError):
            api.store_util.barrier(store=store, world_size=2, key_prefix="alone", barrier_timeout=0.1)
