"""The world that a test asks for: how many ranks, of which kind, on how many hosts."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .messages import Place

SIZE = 2  # of the world of a test that takes the fixture ranks and does not say how many
USUAL_CARDS = 8  # what a machine has if VDEV_DEVICE_COUNT is not set
_BACKENDS = {"vdev": "vccl", "cuda": "nccl", "cpu": "gloo"}
# Seconds. The test's own timeout ends what hangs, and tells more.
GROUP_TIMEOUT = 1800.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    device: str
    backend: str
    fresh: bool
    rank_of_debugger: int | None
    timeout: float

    @classmethod
    def of(cls, config: pytest.Config) -> "Settings":
        device = config.getoption("ranks_device")
        return cls(
            device,
            config.getoption("ranks_backend") or _BACKENDS[device],
            config.getoption("ranks_fresh"),
            config.getoption("rank_pdb"),
            config.getoption("ranks_timeout"),
        )


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A world of ranks, before there are ranks."""

    size: int
    hosts: tuple[str, ...]
    device: str
    backend: str | None
    group_timeout: float
    timeout: float
    environment: Mapping[str, str | None]

    @classmethod
    def of(
        cls,
        settings: Settings,
        size: int,
        hosts: int | Sequence[str] = (),
        group: bool = True,
        device: str | None = None,
        backend: str | None = None,
        timeout: float | None = None,
        group_timeout: float = GROUP_TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> "Wanted":
        """Returns the world for the arguments of ``@pytest.mark.ranks``, which docs/testing.md explains.

        Raises:
            ValueError: they do not go together.
        """
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"a test on {size!r} ranks: their number has to be an integer from 1")
        device = device or settings.device
        if device not in ("cpu", settings.device):
            raise ValueError(
                f"device={device!r}: ranks have cpu and {settings.device}; --ranks-device gives others"
            )
        for name, seconds in (("timeout", timeout), ("group_timeout", group_timeout)):
            if seconds is not None and not isinstance(seconds, int | float):
                raise ValueError(f"{name}={seconds!r}: this is a number of seconds")
        for name, value in (env or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ValueError(f"env={{{name!r}: {value!r}}}: variables and their values are strings")
        chosen = backend or (settings.backend if device == settings.device else _BACKENDS[device])
        names = _names_of_hosts(size, hosts)
        bound = settings.timeout if timeout is None else timeout or math.inf  # 0 is no bound
        return cls(size, names, device, chosen if group else None, group_timeout, bound, dict(env or {}))

    def place(
        self, rank: int, pids: tuple[int, ...], address: tuple[str, int], number: int, free_port: int
    ) -> Place:
        """Returns the place of a rank in this world."""
        return Place(
            rank,
            self.size,
            self.device,
            self.backend,
            self.hosts,
            pids,
            address,
            number,
            free_port,
            self.group_timeout,
            self.environment,
        )

    def with_variables(self, others: Mapping[str, str | None]) -> "Wanted":
        """Returns this world with more environment variables. Those that the test has named come first."""
        return dataclasses.replace(self, environment={**others, **self.environment})

    def reason_to_skip(self) -> str:
        """Returns why this machine cannot run the test, or ""."""
        if self.device == "cpu":
            return ""
        cards = cards_of(self.device)
        if cards is None or self.size <= cards:
            return ""
        more = "" if _is_real(self.device) else "; VDEV_DEVICE_COUNT sets how many there are"
        return f"needs {self.size} ranks with a card each, and there are {cards} of type {self.device}{more}"


def _names_of_hosts(size: int, hosts: int | Sequence[str]) -> tuple[str, ...]:
    """Returns the pretended host of each rank. A number of hosts have equally many ranks, in order."""
    if not isinstance(hosts, int):
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            raise ValueError(f"hosts={hosts!r}: this is a number, or a list with a name for each rank")
        if hosts and len(hosts) != size:
            raise ValueError(f"hosts={list(hosts)} names {len(hosts)} hosts for {size} ranks")
        return tuple(hosts)
    if hosts < 1 or size % hosts:
        raise ValueError(f"{size} ranks cannot be spread evenly over {hosts} hosts")
    return () if hosts == 1 else tuple(f"host_{rank * hosts // size}" for rank in range(size))


def _is_real(device: str) -> bool:
    """Whether the cards are no virtual ones."""
    if device != "cuda":
        return False
    import torch

    return bool(torch.version.cuda or torch.version.hip)


def cards_of(device: str) -> int | None:
    """Returns how many cards there are, or None if there are as many as are asked for."""
    if _is_real(device):
        import torch

        return torch.cuda.device_count()
    count = os.environ.get("VDEV_DEVICE_COUNT", "")
    return int(count) if count.isdigit() else None


def variables(device: str, size: int) -> dict[str, str]:
    """Returns the variables that ranks of that number need from their start."""
    if device == "cpu" or _is_real(device):
        return {}
    return {"VDEV_DEVICE_COUNT": str(size)} if cards_of(device) is None and size > USUAL_CARDS else {}


def from_mark(item: pytest.Item, settings: Settings, timeout: float | None) -> Wanted:
    """Returns the world that a test asks for by its mark or by the fixture.

    Args:
        timeout: seconds for a mark that does not say, or None for those of the command line.

    Raises:
        ValueError: the mark's arguments do not go together.
    """
    mark = item.get_closest_marker("ranks")
    parameter: Any = getattr(getattr(item, "callspec", None), "params", {}).get("ranks")
    sizes = mark.args if mark else ()
    if parameter is None and len(sizes) > 1:
        raise ValueError(f"ranks{sizes}: a method of unittest.TestCase runs on one number of ranks only")
    size = parameter if parameter is not None else sizes[0] if sizes else SIZE
    arguments = {"timeout": timeout, **(mark.kwargs if mark else {})}
    try:
        return Wanted.of(settings, size, **arguments)
    except TypeError as error:
        raise ValueError(str(error).replace("Wanted.of()", "@pytest.mark.ranks")) from None
