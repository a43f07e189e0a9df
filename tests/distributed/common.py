"""What tests of several ranks have in common: marks, and functions that run on every rank."""

import datetime

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vccl.testing import GROUP_TIMEOUT

# For what comes soon, however slow the machine is.
PATIENCE = datetime.timedelta(seconds=300)

everywhere = pytest.mark.parametrize("device", ["vdev", "cpu"])
HOSTS = {2: ("a", "b"), 3: ("a", "a", "b"), 4: ("a", "b", "a", "b")}
PLACES = [(size, hosts) for size in HOSTS for hosts in ((), HOSTS[size])]
every_place = pytest.mark.parametrize(
    "size, hosts", PLACES, ids=[f"{size}_on_{len(set(hosts)) or 1}_host" for size, hosts in PLACES]
)
pairs_of_hosts = pytest.mark.parametrize("hosts", [(), ("a", "b")], ids=["one_host", "two_hosts"])


def total(group: dist.ProcessGroup | None, device: str, elements: int = 100) -> float:
    """The sum over the group of the global ranks plus one, by way of all_reduce."""
    x = torch.full((elements,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(x, group=group)
    assert (x == x[0]).all().item()
    return x[0].item()


def total_of(ranks) -> float:
    return float(sum(rank + 1 for rank in ranks))


def backend_of(group: dist.ProcessGroup | None = None, device: str = "vdev"):
    return (group or dist.group.WORLD)._get_backend(torch.device(device))


def bind(rank, size, store, **options) -> None:
    """A default group that knows its card."""
    device = torch.device("vdev", rank)
    options = {"timeout": datetime.timedelta(seconds=GROUP_TIMEOUT), **options}
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, device_id=device, **options)


def meet(rank: int, size: int, store: dist.Store) -> None:
    """Waits for the others by another way than the group under test."""
    store.set(f"come: {rank}", "")
    store.wait([f"come: {other}" for other in range(size)], PATIENCE)


def default_store() -> dist.Store:
    return c10d._get_default_store()


def sync(device: str) -> None:
    """Waits on the host for what a card does."""
    if device == "vdev":
        torch.accelerator.synchronize()


def tell(what: str) -> None:
    """Tells the ranks that `hear` it, by way of the default group's store."""
    default_store().set(what, "")


def hear(what: str) -> None:
    """Waits until another rank has told it."""
    default_store().wait([what], PATIENCE)
