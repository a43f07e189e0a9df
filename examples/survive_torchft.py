"""Trains through faults with torchft, and ends with the loss of the run that met none.

python examples/survive_torchft.py [--hosts 2]     (pip install torchft==0.2.0)

Three replicas train the model of survive.py on the same samples as its ranks do. torchft adds up what they
have computed, in a group of vccl (vccl.integrations.torchft). A replica that dies is started again, and
torchft gives it the weights of another one.

torchft does not commit a step whose collective has failed. What that does to the loss depends on the program:

- A failed step is repeated here, because the samples are those of ``Manager.current_step()``, which counts
  committed steps alone. A program that takes the next samples of an iterator drops those of failed steps.
- A step needs all replicas here, because ``min_replica_size`` is their number. With a smaller one the
  replicas that are left go on without the dead ones, and so without the samples of these.
- Each replica decides for itself. If one has committed a step that another has not, the latter gets the
  weights of the former. If the former dies before that, the step is repeated, and has the same sum again.

So each step counts once, with all samples, and these are added up in the same order. What is checked: the
loss and the weights of all replicas are the same to the bit as without faults. There is one bound: torchft
has no word for the end of the training. A replica that fails in the last step would wait in vain for those
that have left, so no fault ends a step there.
"""

import argparse
import dataclasses
import datetime
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch.distributed as dist
from survive import LINK_PLAN, STEPS, Training, own_device

from vccl import faults

# torchft reads it while it is imported, and tells every quorum without it.
os.environ.setdefault("RUST_LOG", "error")

from torchft import Manager
from torchft.coordination import LighthouseServer

from vccl.integrations.torchft import ProcessGroupVccl

REPLICAS = 3
# `restart` is the number of the replica's life. A rule with `n` does not strike a step that is repeated.
PLAN = """\
restart=0, rank=1, op=all_reduce, step=1, at=during, do=kill
restart=0, rank=2, op=all_reduce, step=2, at=before, do=segv
restart=0, rank=0, op=all_reduce, step=3, at=after, do=exit:3
restart=1, rank=1, op=all_reduce, step=4, at=during, do=abort
restart=1, rank=2, op=all_reduce, step=5, at=before, do=oom
restart=1, rank=0, op=all_reduce, step=6, n=1, at=before, do=raise:RuntimeError
restart=2, rank=1+2, op=all_reduce, step=7, at=during, do=kill
rank=1, op=all_reduce, step=8, n=1, at=during, do=stop:0.2
rank=2, op=all_reduce, step=9, n=1, at=before, do=stall:0.2
rank=0, phase=first_use, at=before, do=late:0.1
op=all_reduce, do=slow:1.5
"""
# The exit statuses of the lives of each replica. An exception, as that of `oom`, makes it 1.
ENDS = {
    0: [3, 0],
    1: [-signal.SIGKILL, -signal.SIGABRT, -signal.SIGKILL, 0],
    2: [-signal.SIGSEGV, 1, -signal.SIGKILL, 0],
}
# What strikes a replica in its last life, which goes on.
SURVIVED = {"raise", "stop", "stall", "late", "slow"}
LINKS_SURVIVED = {"cut-link"}  # the other one may strike a life that ends
# Seconds that a collective, a step in which a replica starts anew, and a run may take.
COLLECTIVE, STEP, RUN = 20, 60, 130


@dataclasses.dataclass
class Outcome:
    """How a replica has ended the training, and the kinds of the faults that struck its last life."""

    replica: int
    loss: float
    weights: dict[str, Any]
    struck: set[str]


def train(replica: int, life: int, addresses: tuple[str, int], host: str, plan: str, results: object) -> None:
    """Is a replica in one of its lives: trains from the step on that the others have come to."""
    os.environ.update(LOCAL_RANK=str(replica), VCCL_HOSTID=host, TORCHELASTIC_RESTART_COUNT=str(life))
    os.environ["VCCL_FAULTS"] = plan
    # torchft tells every failure with its stack, and torch warns of how torchft reads weights.
    logging.getLogger("torchft").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "The given buffer is not writable")
    lighthouse, port = addresses
    everybody = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    training = Training(own_device())
    manager = Manager(
        pg=ProcessGroupVccl(datetime.timedelta(seconds=COLLECTIVE)),
        state_dict=lambda: {"net": training.net.state_dict(), "loss": training.loss},
        load_state_dict=lambda saved: load(training, saved),
        min_replica_size=REPLICAS,
        use_async_quorum=False,  # a replica that was started again takes part in its first step
        timeout=datetime.timedelta(seconds=STEP),
        quorum_timeout=datetime.timedelta(seconds=STEP),
        replica_id=f"replica{replica}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=own.port,
        rank=0,
        world_size=1,
    )
    while manager.current_step() < STEPS:
        manager.start_quorum()
        step = manager.current_step()
        faults.step(step)
        everything = training.share(step, slice(replica, None, REPLICAS))
        manager.allreduce(everything, reduce_op=dist.ReduceOp.SUM).wait()
        if manager.should_commit():
            training.apply(everything)
        else:
            error = str(manager.errored()).splitlines()[0]
            print(f"replica {replica} does not commit step {step}: {error}", file=sys.stderr, flush=True)
    weights = {name: tensor.tolist() for name, tensor in training.state().items()}
    struck = {fault.kind for fault in faults.struck()}
    results.send(Outcome(replica, training.loss, weights, struck))  # type: ignore[attr-defined]
    # If this replica left, what the others have not ended yet would fail.
    everybody.wait(["end"], datetime.timedelta(seconds=STEP))
    manager.shutdown(wait=False)


def load(training: Training, saved: dict[str, Any]) -> None:
    training.net.load_state_dict(saved["net"])
    training.loss = saved["loss"]


def trained(plan: str, hosts: int, expected: dict[int, list[int]]) -> list[Outcome]:
    """Returns what the replicas have come to, when their lives have ended with the expected exit statuses.

    Raises:
        SystemExit: the replicas have not ended in time, or not as expected.
    """
    until = time.monotonic() + RUN
    # No step begins before all replicas are there. A dead one is known by the lack of its heartbeats.
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=REPLICAS, heartbeat_timeout_ms=1000)
    everybody = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    outcomes: dict[int, Outcome] = {}
    ends: dict[int, list[int]] = {replica: [] for replica in range(REPLICAS)}
    running: dict[int, multiprocessing.process.BaseProcess] = {}

    def start(replica: int) -> None:
        addresses, host = (lighthouse.address(), everybody.port), f"host{replica * hosts // REPLICAS}"
        arguments = (replica, len(ends[replica]), addresses, host, plan, there)
        running[replica] = context.Process(target=train, args=arguments)
        running[replica].start()

    try:
        for replica in range(REPLICAS):
            start(replica)
        while running:
            awaited: list[Any] = [here, *(process.sentinel for process in running.values())]
            ready = multiprocessing.connection.wait(awaited, max(until - time.monotonic(), 0))
            if not ready:
                raise SystemExit(f"the replicas have not ended after {RUN} s, but so far with {ends}")
            if here in ready:
                outcome = here.recv()
                outcomes[outcome.replica] = outcome
                if len(outcomes) == REPLICAS:
                    everybody.set("end", "")
            for replica, process in list(running.items()):
                if process.sentinel not in ready:
                    continue
                process.join()
                del running[replica]
                ends[replica].append(process.exitcode or 0)
                if process.exitcode:
                    if ends[replica] != expected[replica][: len(ends[replica])]:
                        raise SystemExit(f"replica {replica} ended with {process.exitcode}: {ends}")
                    start(replica)
    finally:
        for process in running.values():
            process.kill()
            process.join()
        lighthouse.shutdown()
    if ends != expected:
        raise SystemExit(f"the lives of the replicas ended with {ends}, and should have with {expected}")
    return list(outcomes.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1, help="as which the replicas count")
    options = parser.parse_args()
    links = options.hosts > 1
    undisturbed = trained("", options.hosts, {replica: [0] for replica in range(REPLICAS)})
    disturbed = trained(PLAN + (LINK_PLAN if links else ""), options.hosts, ENDS)
    print(f"torchft: loss {disturbed[0].loss!r}, without faults {undisturbed[0].loss!r}", flush=True)
    if missed := SURVIVED.union(LINKS_SURVIVED if links else ()).difference(
        *(one.struck for one in disturbed)
    ):
        raise SystemExit(f"these faults have struck no replica: {missed}")
    states = [(outcome.loss, outcome.weights) for outcome in undisturbed + disturbed]
    if any(state != states[0] for state in states):
        raise SystemExit(f"a fault has changed the loss or the weights: {states}")
    print("torchft: no fault has changed the loss or the weights of a replica")


if __name__ == "__main__":
    main()
