"""Random programs on two ranks in which a kernel or a host function fails on one of them.

Both ranks make the same choices, so each knows what depends on a failed task of either. What does not depend
on one is right on both ranks, and what does is read by neither. VCCL_TEST_PROGRAMS=1000 plays that many
programs, and VCCL_TEST_SEED=N begins with the seed N.
"""

import random

import pytest
import torch
import torch.distributed as dist
from newer_names import all_gather_single
from random_programs import SEED, Refused, blamed, insist, number_of_programs, refuses

PROGRAMS = number_of_programs(12)
SIZE, BAD = 16, 10**6


class Program:
    def __init__(self, rank: int, seed: int) -> None:
        self.random, self.rank = random.Random(seed), rank
        self.group = dist.new_group()
        self.source = torch.arange(SIZE, device="vdev")
        self.good = torch.zeros(SIZE, dtype=torch.int64, device="vdev")
        self.bad = torch.full((SIZE,), BAD, device="vdev")
        self.x, self.twin = torch.arange(SIZE, device="vdev"), torch.arange(SIZE)
        self.kept: list[torch.Tensor] = []
        self.copies: list[tuple[torch.Tensor, torch.Tensor, torch.Event]] = []
        self.source[self.good]  # is a task from now on
        torch.vdev.synchronize()

    def play(self) -> None:
        steps = [self.operator, self.all_reduce, self.fail, self.read, self.download, self.replay]
        for _ in range(12):
            self.random.choices(steps, weights=[4, 4, 3, 2, 2, 1])[0]()
        self.read()
        self.kept.clear()
        torch.vdev.clear_errors()
        dist.barrier()  # the failure of one rank would end what the other one has not finished
        self.random.choice([self.feed, self.feed_a_graph, self.send, self.stop, self.read])()
        torch.vdev.clear_errors()
        dist.destroy_process_group(self.group)
        torch.vdev.synchronize()

    def fails_here(self) -> bool:
        return self.random.randrange(2) == self.rank

    def index(self) -> torch.Tensor:
        """Returns an index with which a kernel fails on one of the ranks."""
        return self.bad if self.fails_here() else self.good

    def operator(self) -> None:
        self.x = insist(lambda: (self.x * 3 + 1).remainder(1000))
        self.twin = (self.twin * 3 + 1).remainder(1000)

    def all_reduce(self) -> None:
        work = dist.all_reduce(self.x, group=self.group, async_op=self.random.random() < 0.5)
        if work is not None:
            work.wait()
        self.twin = self.twin * 2

    def fail(self) -> None:
        """A kernel fails on which nothing else depends."""
        index, keeps = self.index(), self.random.random() < 0.5
        torch.vdev._sleep(self.random.choice((1, 200_000)))
        try:
            result = self.source[index]
        except Refused:
            return
        if keeps and index is self.bad:
            self.kept.append(result)

    def read(self) -> None:
        assert insist(self.x.tolist) == self.twin.tolist()
        for result in self.kept:
            refuses(result.tolist)
        if self.kept:
            refuses(torch.vdev.synchronize)

    def download(self) -> None:
        host = torch.zeros(SIZE, dtype=torch.int64, pin_memory=True)
        host.copy_(self.x, non_blocking=True)
        event = torch.vdev.current_stream().record_event()
        for _ in range(10):
            try:
                event.synchronize()
            except Refused:
                if self.kept:
                    return  # the stream has failed, and the event cannot say where
                continue
            assert torch.equal(host, self.twin)
            return
        raise AssertionError("an event raises what nothing depends on")

    def capture(self, index: torch.Tensor) -> tuple[torch.vdev.VDEVGraph, torch.Tensor, torch.Tensor]:
        torch.vdev.synchronize()
        graph = torch.vdev.VDEVGraph()
        with torch.vdev.graph(graph):
            first = self.source[index]
            dist.all_reduce(first, group=self.group)
            second = first + 1
        return graph, first, second

    def replay(self) -> None:
        self.kept.clear()
        torch.vdev.clear_errors()
        graph, first, second = self.capture(self.good)
        for _ in range(2):
            graph.replay()
            assert insist(first.tolist) == [0] * SIZE and insist(second.tolist) == [1] * SIZE

    def feed(self) -> None:
        """Gives a collective what a kernel of one rank has not written."""
        index, async_op = self.index(), self.random.random() < 0.5
        gathered = torch.zeros(2 * SIZE, dtype=torch.int64, device="vdev")
        pinned = torch.zeros(SIZE, dtype=torch.int64, pin_memory=True)
        choice = self.random.random() < 0.5
        torch.vdev._sleep(1_000_000)
        y = self.source[index]
        try:
            if choice:
                work = dist.all_reduce(y, group=self.group, async_op=async_op)
            else:
                work = all_gather_single(gathered, y, group=self.group, async_op=async_op)
                y = gathered
            if work is not None:
                work.wait()
            pinned.copy_(y[:SIZE], non_blocking=True)
        except Refused:
            if index is self.good:
                return  # the other rank's failure is known already
        refuses(y.tolist)
        refuses(torch.vdev.current_stream().query)
        refuses(torch.vdev.current_stream().record_event().synchronize)
        refuses(lambda: y + 1)

    def feed_a_graph(self) -> None:
        index = torch.zeros(SIZE, dtype=torch.int64, device="vdev")
        graph, first, second = self.capture(index)
        graph.replay()
        assert insist(second.tolist) == [1] * SIZE
        dist.barrier()  # a rank that fails would interrupt the other one's replay
        index.fill_(BAD if self.fails_here() else 0)
        graph.replay()
        refuses(first.tolist)
        refuses(second.tolist)
        refuses(torch.vdev.synchronize)

    def send(self) -> None:
        """Sends what a kernel has not written."""
        sender = self.random.randrange(2)
        if self.rank == sender:
            torch.vdev._sleep(1_000_000)
            y = self.source[self.bad]
            with pytest.raises(Refused):
                dist.isend(y, 1 - sender, group=self.group).wait()
                torch.vdev.synchronize()
        else:
            y = torch.zeros(SIZE, dtype=torch.int64, device="vdev")
            try:
                work = dist.irecv(y, sender, group=self.group)
            except Refused:
                return  # the other rank's failure is known already
            with pytest.raises(Refused):
                work.wait()
                torch.vdev.synchronize()
        refuses(y.tolist)

    def stop(self) -> None:
        """A host function fails on one rank, and the collective behind it fails on both."""

        def fail() -> None:
            raise ValueError("the reason")

        insist(self.x.tolist)
        dist.barrier()
        if self.fails_here():
            torch.vdev._launch_host_func(fail)
        try:
            dist.all_reduce(self.x, group=self.group)
        except Refused:
            pass  # the other rank's failure is known already
        else:
            refuses(self.x.tolist)
            refuses(torch.vdev.synchronize)


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
def test_random_programs(ranks):
    for seed in range(SEED, SEED + PROGRAMS):
        with blamed(seed):
            Program(ranks.rank, seed).play()
