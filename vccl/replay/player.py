"""Plays the plan of one rank. ``python -m vccl.replay`` starts it on every rank, through vrun."""

import argparse
import datetime
import json
import os
import pathlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vccl._device_type import device_type
from vccl.replay import calls
from vccl.replay.plan import GAPS, MESSAGES

# The tensor with which a rank computes in gaps: some microseconds an addition, within a core's cache.
_COMPUTED_ELEMENTS = 32_768
# How often a rank that has nothing more to do looks whether the others have.
_LOOK_SECONDS = 0.05


class _Player:
    """Makes the calls of a plan, and remembers which of them are under way.

    A job may call on several streams, and its ranks see the calls of different groups start in different
    orders. On one stream, calls that had overlapped would wait for each other, on two ranks the other way
    round. So each call returns a handle here, even if it did not in the job, and is held up only by what its
    step waits for.
    """

    def __init__(self, plan: dict[str, Any], options: argparse.Namespace) -> None:
        self._plan = plan["rank"]
        self._gaps = options.gaps
        self._computed = torch.ones(_COMPUTED_ELEMENTS)
        self._devices = _devices(self._plan["steps"], options.device)
        timeout = datetime.timedelta(seconds=options.timeout)
        everybody = list(range(plan["size"]))
        self._groups: list[dist.ProcessGroup] = []
        # Every rank makes every group, in the same order. The first one of all ranks is the default group.
        default_used = False
        for ranks in plan["groups"]:
            if ranks == everybody and not default_used:
                default_used = True
                self._groups.append(dist.distributed_c10d._get_default_group())
            else:
                self._groups.append(dist.new_group(ranks, backend="vccl", timeout=timeout))
        self._sizes = [len(ranks) for ranks in plan["groups"]]
        self._pool = calls.BufferPool()
        self._under_way: dict[int, tuple[Any, list[tuple[str, calls.Buffers]]]] = {}
        self._steps = self._plan["steps"]
        self._connect(plan["used_by_all"] if options.device == "vdev" else plan["used_by_all_on_cards"])

    def _connect(self, places: list[int]) -> None:
        """Uses groups on this rank's cards for the first time.

        The ranks of a group meet for that. In the job they had met in an order that the record may not show,
        as it may be of a part of the program. A group that not all ranks use stays as it is: whoever waited
        for a rank in the job does so in the replay.
        """
        cards = {
            (call["group"], self._devices[call["card"]])
            for step in self._steps
            for call in step["calls"]
            if call["group"] in places
            and call["name"] not in MESSAGES
            and self._devices[call["card"]].type != "cpu"
        }
        for place, device in sorted(cards, key=lambda used: (used[0], used[1].index)):
            self._groups[place]._get_backend(device).eager_connect_single_device(device)

    def play(self) -> None:
        """Makes all calls once, and returns when they are over."""
        due = time.perf_counter_ns() + (self._plan["offset_ns"] if self._gaps else 0)
        for number, step in enumerate(self._steps):
            for earlier in step["waits"]:
                self._finish(earlier)
            if self._gaps:
                since = time.perf_counter_ns() if step["waits"] else due
                due = since + step["gap_ns"] if number else due
                self._pass_gap(due)
            self._under_way[number] = self._launch(step)
            if self._gaps:
                due = time.perf_counter_ns()
        for number in list(self._under_way):
            self._finish(number)

    def _pass_gap(self, due_ns: int) -> None:
        """Returns at that time. Ranks that compute need cores meanwhile, as those of the job did."""
        if self._gaps == "compute":
            while time.perf_counter_ns() < due_ns:
                self._computed.add_(1)
        else:
            time.sleep(max(0, due_ns - time.perf_counter_ns()) * 1e-9)

    def _launch(self, step: dict[str, Any]) -> tuple[Any, list[tuple[str, calls.Buffers]]]:
        group = self._groups[step["calls"][0]["group"]]
        device = self._devices[step["calls"][0]["card"]]
        taken = [self._pool.take(call, device, self._sizes[call["group"]]) for call in step["calls"]]
        work = None
        if step["is_batch"]:
            group._start_coalescing(device)
        for call, (_, buffers) in zip(step["calls"], taken, strict=True):
            work = calls.launch(group, call, buffers)
        if step["is_batch"]:
            work = group._end_coalescing(device)
        return work, taken

    def _finish(self, number: int) -> None:
        work, taken = self._under_way.pop(number)
        work.wait()
        # On a card, wait() holds up the current stream, which has nothing else to do.
        for device in {tensor.device for _, (i, o) in taken for tensor in (*i, *o)}:
            if device.type != "cpu":
                torch.accelerator.current_stream(device).synchronize()
        for key, buffers in taken:
            self._pool.give_back(key, buffers)


def _devices(steps: list[dict[str, Any]], wanted: str) -> dict[int, torch.device]:
    """Returns the device of each card of the record: this rank's card, or the CPU.

    A rank that has used several cards uses cards of the same numbers.
    """
    cpu = torch.device("cpu")
    cards = sorted({call["card"] for step in steps for call in step["calls"] if call["card"] >= 0})
    name = device_type()
    if wanted == "cpu":
        return dict.fromkeys((-1, *cards), cpu)
    own = torch.device(name, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    found = {card: own if len(cards) == 1 else torch.device(name, card) for card in cards}
    return {-1: own if wanted == "vdev" else cpu, **found}


def _meet(store: dist.Store, what: str, size: int) -> None:
    """Waits for the other ranks without an operation, which the record of the replay would have."""
    if store.add(f"replay/{what}", 1) == size:
        store.set(f"replay/{what}/all", "")
    store.wait([f"replay/{what}/all"])


def _linger(store: dist.Store, size: int, seconds: float) -> None:
    """Waits until the other ranks have played their plans, or the time has passed.

    The record of this rank has no end: the process may have stood, so nobody is told that it has left.
    """
    end = time.monotonic() + seconds
    while store.add("replay/done", 0) < size and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="vccl.replay.player")
    parser.add_argument("plans", type=pathlib.Path)
    parser.add_argument("--gaps", choices=GAPS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--device", choices=("recorded", "vdev", "cpu"), default="recorded")
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    dist.init_process_group("vccl", timeout=datetime.timedelta(seconds=options.timeout))
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = json.loads((options.plans / f"plan-{rank}.json").read_text())
    store = c10d._get_default_store()
    player = _Player(plan, options)
    for turn in range(options.repeat):
        _meet(store, f"turn {turn}", size)
        player.play()
    store.add("replay/done", 1)
    if plan["rank"]["lingers"]:
        _linger(store, size, options.timeout + 10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
