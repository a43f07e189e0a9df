"""Comparisons between the ranks of a group: what came first on which rank, and who has other weights."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten_with_path

from vccl.compare.parts import parts_of


@dataclass(frozen=True)
class FirstRank:
    """On which rank something was found first. ``findings`` has what each rank found, or None.

    ``rank`` is the rank's number in the group, and None if no rank found anything.
    """

    rank: int | None
    findings: list[Any]

    @property
    def finding(self) -> Any:
        """The finding of that rank, or None."""
        return None if self.rank is None else self.findings[self.rank]

    def __str__(self) -> str:
        if self.rank is None:
            return f"nothing on any of {len(self.findings)} ranks"
        others = [str(rank) for rank, found in enumerate(self.findings) if found is not None]
        return f"first on rank {self.rank} (found on ranks {', '.join(others)}): {self.finding}"


def across_ranks(finding: Any, group: dist.ProcessGroup | None = None) -> FirstRank:
    """Tells on which rank something was found first. Every rank of the group has to call it.

    Args:
        finding: the finding of this rank: a ``Report``, the tracker of ``track_nonfinite``, or None.
        group: None: the default group.

    The order is that of the operators in each rank's own run. A finding that a collective has brought to a
    rank comes after the findings of the ranks' own operators. Of several ranks with the same number, the
    lowest counts.
    """
    mine = finding.first if hasattr(finding, "first") else finding
    if mine is not None and getattr(mine, "same", False):
        mine = None
    summary = None if mine is None else _Summary(str(mine), mine.order, mine.module, mine.operator)
    findings: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(findings, summary, group=group)
    found = [(one.order, rank) for rank, one in enumerate(findings) if one is not None]
    return FirstRank(min(found)[1] if found else None, findings)


@dataclass(frozen=True)
class _Summary:
    """What a rank tells the others of its finding."""

    text: str
    order: tuple[int, int]
    module: str
    operator: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Entry:
    """A tensor of the state: enough to see that two ranks have not the same."""

    description: str
    fingerprint: bytes
    norm: float


@dataclass
class RanksReport:
    """The result of ``compare_ranks``. ``same`` is true if all ranks have the same bits.

    ``name`` is the first tensor that differs. ``parties`` has the ranks that agree about it, one list for
    each version, the largest first, and ``differing`` the ranks of all lists but the first. ``names`` has
    all tensors that differ. ``skipped`` has the DTensors of which each rank holds another part.
    """

    size: int
    name: str = ""
    parties: list[list[int]] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return not self.names

    @property
    def differing(self) -> list[int]:
        return sorted(rank for party in self.parties[1:] for rank in party)

    def __str__(self) -> str:
        if self.same:
            besides = f" ({len(self.skipped)} sharded tensors were not compared)" if self.skipped else ""
            return f"all {self.size} ranks have the same{besides}"
        lines = [f"{self.name} is the first of {len(self.names)} tensors that differ between ranks:"]
        for party, description in zip(self.parties, self.descriptions, strict=True):
            lines.append(f"  ranks {', '.join(map(str, party))}: {description}")
        return "\n".join(lines)


def compare_ranks(state: Any, group: dist.ProcessGroup | None = None) -> RanksReport:
    """Compares tensors between ranks bit by bit, and names the first that differs. Every rank has to call it.

    Ranks exchange a fingerprint (BLAKE2) and the norm of each tensor, so the cost does not grow with the
    number of ranks. The host waits for the card.

    Args:
        state: a module (its parameters and buffers), or any tree of tensors: ``optimizer.state_dict()``, a
            list of gradients, a dict. DTensors are compared if they are replicated.
        group: None: the default group.
    """
    tensors = dict(_tensors(state))
    skipped = [name for name, tensor in tensors.items() if _is_sharded(tensor)]
    entries = {name: _entry(tensor) for name, tensor in tensors.items() if name not in skipped}
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, entries, group=group)
    report = RanksReport(len(gathered), skipped=skipped)
    names = dict.fromkeys(name for of_rank in gathered for name in of_rank)
    for name in names:
        parties: dict[bytes | None, list[int]] = defaultdict(list)
        for rank, of_rank in enumerate(gathered):
            parties[of_rank[name].fingerprint if name in of_rank else None].append(rank)
        if len(parties) == 1:
            continue
        if not report.names:
            report.name = name
            report.parties = sorted(parties.values(), key=lambda party: (-len(party), party))
            report.descriptions = [_described(gathered[party[0]].get(name)) for party in report.parties]
        report.names.append(name)
    return report


def _described(entry: _Entry | None) -> str:
    return "no such tensor" if entry is None else f"{entry.description}, norm {entry.norm:.9g}"


def _tensors(state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, nn.Module):
        yield from state.named_parameters()
        yield from state.named_buffers()
        return
    flat, _ = tree_flatten_with_path(state)
    for path, leaf in flat:
        if isinstance(leaf, torch.Tensor):
            yield ".".join(_key(part) for part in path), leaf


def _key(part: Any) -> str:
    """Returns a step of a path in a tree, such as 'exp_avg' for ['exp_avg'] and '0' for [0]."""
    return str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part))))


def _is_sharded(tensor: Any) -> bool:
    return any(not placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _entry(tensor: torch.Tensor) -> _Entry:
    parts = [part.cpu().contiguous() for part in parts_of(tensor)]
    description = " and ".join(f"{str(p.dtype).removeprefix('torch.')}{list(p.shape)}" for p in parts)
    digest = hashlib.blake2b(description.encode(), digest_size=16)
    norm = 0.0
    for part in parts:
        if part.numel():
            size = part.numel() * part.element_size()
            digest.update((ctypes.c_char * size).from_address(part.data_ptr()))
        wide = part.to(torch.complex128 if part.is_complex() else torch.float64)
        norm = math.hypot(norm, float(torch.linalg.vector_norm(wide)))
    return _Entry(description, digest.digest(), norm)
