"""A call of one of two replicas raises. The other one, which waits in the collective, hears of it at once.

torchft catches what a call raises, and goes on to the next quorum. A replica that waits for the call until
its timeout would hold up that quorum.
"""

import contextlib
import multiprocessing
import sys
import time
from datetime import timedelta

import torch
from torch.distributed import AllreduceOptions, TCPStore

from vccl import faults

TIMEOUT = 30


def meet(store: TCPStore, where: str, number: int) -> None:
    store.set(f"{where} {number}", "")
    store.wait([f"{where} 0", f"{where} 1"], timedelta(seconds=2 * TIMEOUT))


def replica(number: int, port: int) -> None:
    from vccl.integrations.torchft import ProcessGroupVccl

    torch.accelerator.set_device_index(number)
    store = TCPStore("localhost", port, is_master=False)
    group = ProcessGroupVccl(timedelta(seconds=TIMEOUT))
    group.configure(f"localhost:{port}/torchft", f"replica{number}", number, 2)
    tensor = torch.ones(1000, device="vdev")
    group.allreduce([tensor], AllreduceOptions()).wait()
    assert tensor[0].item() == 2 and group.errored() is None
    meet(store, "begin", number)  # an abort would reach the first all_reduce, too
    begin = time.monotonic()
    # The call of replica 1 raises, too, if it comes after the other one.
    with faults.plan("rank=0, op=all_reduce, do=raise:RuntimeError"), contextlib.suppress(RuntimeError):
        group.allreduce([tensor], AllreduceOptions()).wait()
    took, error = time.monotonic() - begin, str(group.errored())
    if took > TIMEOUT / 2 or "rank 0" not in error:
        sys.exit(f"Replica {number} has gone on after {took:.1f} s, and says: {error}")
    meet(store, "end", number)  # the end of a replica would be a failure, too


if __name__ == "__main__":
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    replicas = [context.Process(target=replica, args=(number, store.port)) for number in range(2)]
    for process in replicas:
        process.start()
    for process in replicas:
        process.join(4 * TIMEOUT)
        process.kill()
    for process in replicas:
        process.join()
    sys.exit(any(process.exitcode for process in replicas))
