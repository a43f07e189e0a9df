"""Memory of a card that two processes use. Rank 0 owns it, and rank 1 gets it without a copy.

Which of the two accesses comes first may depend on the timing, and only the process of the later one reports.
"""

import pickle
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist
from racing import READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, Programs, current

PROGRAMS = Programs()
racing = PROGRAMS.racing


class Pair:
    """One rank's side of the memory."""

    def __init__(self, rank, store):
        self.rank, self.store = rank, store
        self.other = torch.ones(4, device=torch.device("vdev", rank))
        torch.vdev.set_device(rank)

    def send(self, name, value):
        self.store.set(name, bytes(ForkingPickler.dumps(value)))

    def receive(self, name):
        return pickle.loads(self.store.get(name))

    def tell(self, name):
        self.store.set(name, "")

    def hear(self, name):
        self.store.get(name)

    def shared(self):
        """Returns the memory, which rank 0 has filled and sent."""
        if self.rank == 1:
            return self.receive("x")
        x = torch.ones(8, device="vdev:0")
        self.send("x", x)
        return x


@racing(WRITE_AFTER_READ, "let rank")
def is_read_without_a_synchronization(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.sum()  # first
        if repaired:
            torch.vdev.synchronize(0)
        pair.tell("read")
    else:
        pair.hear("read")
        x.zero_()  # second


@racing(READ_AFTER_WRITE)
def is_written_by_the_receiver(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.add_(1)  # first
        if repaired:
            torch.vdev.current_stream(0).synchronize()
        pair.tell("written")
    else:
        pair.hear("written")
        x.sum()  # second


@racing("")
def is_overwritten_while_it_is_read(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.sum().item()  # second
        pair.tell("read")
    else:
        if repaired:
            pair.hear("read")
        x.zero_()  # first


@racing(READ_AFTER_WRITE)
def is_filled_on_a_side_stream(pair, repaired):
    if pair.rank == 1:
        pair.receive("x").sum()  # second
        return
    side = torch.vdev.Stream(0)
    x = torch.empty(8, device="vdev:0")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    pair.send("x", x)


@racing(READ_AFTER_WRITE, "interprocess event")
def an_event_is_recorded_too_early(pair, repaired):
    if pair.rank == 1:
        x = pair.receive("x")
        event = torch.vdev.Event.from_ipc_handle(torch.device("vdev:0"), pair.store.get("event"))
        event.wait(torch.vdev.current_stream(0))
        x.sum()  # second
        pair.tell("end")
        return
    x = torch.empty(8, device="vdev:0")
    pair.send("x", x)
    event = torch.vdev.Event(interprocess=True)
    event.record()
    x.fill_(1)  # first
    if repaired:
        event.record()
    pair.store.set("event", event.ipc_handle())
    pair.hear("end")


@racing(WRITE_AFTER_READ)
def an_event_comes_back(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        event = torch.vdev.Event.from_ipc_handle(torch.device("vdev:0"), pair.store.get("event"))
        side = torch.vdev.Stream(0)
        side.wait_stream(torch.vdev.current_stream(0))
        with torch.vdev.stream(side):
            x.sum()  # first
        event.record(side if repaired else torch.vdev.current_stream(0))
        pair.tell("recorded")
        pair.hear("end")
        return
    event = torch.vdev.Event(interprocess=True)
    event.record()
    pair.store.set("event", event.ipc_handle())
    pair.hear("recorded")
    event.wait()
    x.zero_()  # second
    pair.tell("end")


@racing("")
def a_collective_comes_too_early(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        if not repaired:
            dist.all_reduce(pair.other)
        x.add_(1)  # first
        if repaired:
            torch.vdev.current_stream(1).wait_stream(torch.vdev.current_stream(0))
            dist.all_reduce(pair.other)
    else:
        dist.all_reduce(pair.other)
        x.sum()  # second


@racing("")
def a_broadcast_orders_from_its_root_only(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.add_(1)  # first
        torch.vdev.current_stream(1).wait_stream(torch.vdev.current_stream(0))
        dist.broadcast(pair.other, src=1 if repaired else 0)
    else:
        dist.broadcast(pair.other, src=1 if repaired else 0)
        x.sum()  # second


@racing("")
def a_message_is_not_waited_for(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.mul_(2)  # first
        torch.vdev.current_stream(1).wait_stream(torch.vdev.current_stream(0))
        dist.send(pair.other, 0)
    else:
        work = dist.irecv(pair.other, 1)
        if repaired:
            work.wait()
        x.sum()  # second
        work.wait()


@racing("")
def a_barrier_is_missing(pair, repaired):
    x = pair.shared()
    if pair.rank == 1:
        x.mul_(2)  # first
        torch.vdev.synchronize(0)
    if repaired:
        dist.barrier()
    if pair.rank == 0:
        x.sum()  # second


@racing("")
def both_write_the_same_columns(pair, repaired):
    x = pair.shared().view(4, 2)
    if pair.rank == 1:
        x[:, 0].fill_(1)  # first
    else:
        x[:, 1 if repaired else 0].fill_(2)  # second


@racing(WRITE_AFTER_WRITE)
def a_third_one_tells(pair, repaired):
    """What was heard of one stream does not order another one."""
    x = pair.shared()
    if pair.rank == 1:
        side = torch.vdev.Stream(0)
        side.wait_stream(torch.vdev.current_stream(0))
        with torch.vdev.stream(side):
            x.fill_(1)  # first
        (side if repaired else torch.vdev.current_stream(0)).synchronize()
        pair.tell("written")
    else:
        pair.hear("written")
        x.fill_(2)  # second
