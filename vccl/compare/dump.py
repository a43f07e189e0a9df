"""The arguments of one operator in a file, and their replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vccl._device_type import device_type
from vccl.compare.arguments import from_plain
from vccl.compare.differences import first_difference
from vccl.compare.isolation import kept_arguments
from vccl.compare.observer import Observer, refuse_capture
from vccl.compare.operators import draws_numbers, has_values, shapes_of, values_of
from vccl.compare.places import Places, modules_of
from vccl.compare.precision import narrowest_of
from vccl.compare.tolerance import Difference, Tolerance

_FORMAT = "vccl.compare 1"
_NAMES = 8  # how many operators an error lists


class _Dump(Observer):
    """Writes the arguments of a call of an operator to a file, before the call."""

    def __init__(self, places: Places, operator: str, path: str | Path, module: str, call: int) -> None:
        super().__init__()
        self.places = places
        self.operator = operator
        self.path = path
        self.module = module
        self.call = call
        self.seen = 0
        self.others: dict[str, None] = {}  # the names of other operators in these modules, in their order

    @property
    def done(self) -> bool:
        return self.seen > self.call

    def observed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        place = self.places.here()
        if not self.done and fnmatchcase(place.module, self.module):
            if _is_named(function, self.operator):
                if self.seen == self.call:
                    self._write(function, args, kwargs)
                self.seen += 1
            elif has_values(function):
                self.others[function.name()] = None
        return function(*args, **kwargs)

    def _write(self, function: Any, args: tuple, kwargs: dict) -> None:
        refuse_capture("dump_operator", "reads the arguments of the operator")
        kept = kept_arguments(function, args, kwargs)
        if kept is None:
            raise TypeError(f"arguments of {function.name()} cannot be written to a file")
        write_dump(self.path, kept)

    def why_not(self) -> str:
        """Says why there is no file, and what to ask for instead."""
        where = f"in modules {self.module!r}"
        if self.seen:
            last = f"and call={self.seen - 1} is the last" if self.seen > 1 else "and call=0 is the only one"
            return (
                f"{self.operator} was called {self.seen} times {where}, so there is no call {self.call}:"
                f" calls count from 0, {last}"
            )
        others = list(self.others)
        called = ", ".join(others[:_NAMES]) or "no operators"
        more = f" and {len(others) - _NAMES} more" if len(others) > _NAMES else ""
        composite = ""
        if _is_composite(self.operator):
            composite = (
                f" {self.operator} is a composite operator: torch makes others of it. Name one of these."
            )
        return f"{self.operator} was not called {where}.{composite} Called were: {called}{more}"


def _is_named(function: Any, name: str) -> bool:
    """Returns whether "aten::add.Tensor", "add.Tensor", "aten::add" or "add" names an operator."""
    whole = (function.name(), function._schema.name)
    return name in whole or name in [text.rpartition("::")[2] for text in whole]


def _is_composite(name: str) -> bool:
    """Returns whether torch makes other operators of an operator before a dispatch mode sees it."""
    space, _, rest = name.rpartition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space or "aten"), base, None)
    overloads = [] if packet is None else [one for one in packet.overloads() if overload in ("", one)]
    names = [getattr(packet, one).name() for one in overloads]
    composite = "CompositeImplicitAutograd"
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(one, composite) for one in names)


@contextmanager
def dump_operator(
    operator: str, path: str | Path, *, model: nn.Module | None = None, module: str = "*", call: int = 0
) -> Iterator[None]:
    """Writes the arguments of a call of an operator in the block to a file.

    Args:
        operator: its name: "add", "aten::add", "add.Tensor" or "aten::add.Tensor".
        path: the file, for ``python -m vccl.compare replay``.
        model: the model whose modules ``module`` chooses from.
        module: only calls in modules with this path; * and ? stand for any characters.
        call: which of these calls, from 0.

    Raises:
        LookupError: at the end of the block, if there was no such call.
        TypeError: an argument cannot be written to a file.
    """
    places = Places(modules_of(model) if model is not None else [])
    dump = _Dump(places, operator, path, module, call)
    with places.watching(), dump:
        yield
    if not dump.done:
        raise LookupError(dump.why_not())


def write_dump(path: str | Path, kept: dict[str, Any]) -> None:
    torch.save({"format": _FORMAT, **kept}, path)


@dataclass
class ReplayReport:
    """The result of ``replay``. ``difference`` is None if both devices agree.

    If the operator is ``random``, devices draw other numbers, so only the sizes of its results are compared.
    """

    operator: str
    arguments: str
    devices: tuple[str, str]
    difference: Difference | None
    random: bool = False

    def __str__(self) -> str:
        both = f"{self.devices[0]} and {self.devices[1]} (the reference)"
        what = " in the sizes of the results; the operator draws random numbers" if self.random else ""
        found = f"no difference{what}" if self.difference is None else str(self.difference)
        return f"{self.operator}{self.arguments}\n{both}: {found}"


def replay(
    path: str | Path, *, device: str | None = None, reference: str = "cpu", tolerance: Tolerance | None = None
) -> ReplayReport:
    """Runs an operator with the arguments in a file on two devices, and compares what they compute.

    Of an operator that draws random numbers, only the number and the sizes of the results are compared.

    Args:
        path: the file that ``dump_operator`` or ``Report.dump`` wrote.
        device: None: the current card.
        reference: the device that it should agree with.
        tolerance: None: ``Tolerance()``.

    Raises:
        ValueError: the file is not a dump, or names an operator that does not exist.
    """
    kept = _read(path)
    function = _find(kept["operator"])
    device = device or device_type()
    args, kwargs = _arguments(kept, device)
    random = draws_numbers(function, args, kwargs)
    ours, theirs = (_run(function, kept, place) for place in (device, reference))
    if random:
        ours, theirs = ([torch.zeros_like(value) for value in values] for values in (ours, theirs))
    carried = [narrowest_of((args, kwargs, ours))]
    found = first_difference(ours, theirs, tolerance or Tolerance(), carried)
    difference = found[1] if found else None
    return ReplayReport(kept["operator"], shapes_of(args, kwargs), (device, reference), difference, random)


def _read(path: str | Path) -> dict[str, Any]:
    # It makes a nested tensor of its parts. From 2.15 on, torch does not allow it by itself.
    try:
        with torch.serialization.safe_globals([torch._utils._rebuild_nested_tensor]):
            kept = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception:  # torch's text advises to run what is in the file
        kept = None
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a dump that vccl.compare wrote. dump_operator() and Report.dump() write dumps."
        )
    return kept


def _arguments(kept: dict[str, Any], device: str) -> tuple[tuple, dict[str, Any]]:
    kwargs = {name: from_plain(value, device) for name, value in kept["kwargs"].items()}
    return tuple(from_plain(kept["args"], device)), kwargs


def _run(function: Any, kept: dict[str, Any], device: str) -> list[torch.Tensor]:
    """Returns what an operator computes on a device, on the CPU."""
    args, kwargs = _arguments(kept, device)
    output = function(*args, **kwargs)
    return [value.detach().cpu() for value in values_of(function, args, kwargs, output)]


def _find(name: str) -> Any:
    """Returns the operator of a name such as "aten::add.Tensor"."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except AttributeError:
        raise ValueError(
            f"there is no operator {name}. Import what defines it, or load its library."
        ) from None
