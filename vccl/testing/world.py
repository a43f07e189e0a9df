"""The world of ranks that a test runs in, as one of its ranks sees it."""

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from . import schedules
from .messages import Place

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

_current: "World | None" = None


class World:
    """The ranks of a test. The fixture ``ranks`` returns it."""

    def __init__(self, place: Place, store: "dist.Store") -> None:
        self._place = place
        self._stores = 0
        self.store = store
        """The store of this test, for what the ranks tell each other besides collectives."""

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._place.size

    @property
    def device(self) -> "torch.device":
        """The rank's card, or the CPU."""
        import torch

        kind = self._place.device
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self.rank)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The pretended host of each rank, or () if all are on this one."""
        return self._place.hosts

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of each rank."""
        return self._place.pids

    def isolated_store(self) -> "dist.Store":
        """Returns a store with no keys, the same one on all ranks, which have to call this equally often."""
        import torch.distributed as dist

        self._stores += 1
        return dist.PrefixStore(f"isolated_{self._stores}", self.store)

    def make_group(self) -> None:
        """Makes the default group of the test's backend, unless the test wants none.

        Raises:
            ValueError: there is a default group.
        """
        import torch.distributed as dist

        if self._place.backend is None:
            return
        dist.init_process_group(
            self._place.backend,
            store=dist.PrefixStore("default_group", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=self._place.group_timeout),
        )


def current() -> World:
    """Returns the world of the test that runs in this process.

    Raises:
        RuntimeError: no test runs here on ranks.
    """
    if _current is None:
        raise RuntimeError(
            "this process is no rank of a test: mark the test with @pytest.mark.ranks(n), or let it take the "
            "fixture ranks"
        )
    return _current


@contextlib.contextmanager
def entered(place: Place, store: "dist.Store") -> Iterator[World]:
    """Makes this process a rank of a world, with its card and its variables, inside a ``with`` block.

    Args:
        store: of all calls.
    """
    global _current
    import torch
    import torch.distributed as dist

    own = _variables(place)
    before = {name: os.environ.get(name) for name in own}
    try:
        _set_variables(own)
        with schedules.playing():
            if place.device != "cpu":
                torch.accelerator.set_device_index(place.rank)
                torch.get_device_module(place.device).manual_seed(torch.initial_seed())
            _current = World(place, dist.PrefixStore(f"call_{place.number}", store))
            yield _current
    finally:
        _current = None
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    """Sets environment variables, and removes those that are None."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _variables(place: Place) -> dict[str, str | None]:
    """Returns torchrun's variables for a rank, and those of the test."""
    mine = place.hosts[place.rank] if place.hosts else ""
    peers = [rank for rank in range(place.size) if not place.hosts or place.hosts[rank] == mine]
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        # Every rank has a card of its own, so the card's index is the rank on pretended hosts too.
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(len(peers)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place.free_port),
        **({"VCCL_HOSTID": mine} if place.hosts else {}),
        **place.environment,
    }
