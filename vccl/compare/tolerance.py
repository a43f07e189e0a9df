"""When two tensors count as different."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

# rtol, atol. Two runs add up the rounding of many operators, so these are wider than what one operator needs.
_DEFAULTS: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 2e-3),
    torch.bfloat16: (3e-2, 1.6e-2),
    torch.complex128: (1e-9, 1e-10),
    torch.complex64: (1e-4, 1e-5),
}
_FLOAT8 = (2.5e-1, 1.25e-1)
# In two runs that round otherwise, single elements may lie far apart: one ReLU lets through what the other
# does not. This is the error of the whole tensor, divided by its norm, that such runs have at most.
_ROUNDING = 0.25
_NARROW = 1e-4  # the eps from which this counts: that of float16 and narrower


@dataclass(frozen=True)
class Tolerance:
    """How far elements may lie apart: ``|a - b| <= rtol * |b| + atol * max |b| + least``.

    ``max |b|`` is the largest finite magnitude in the reference's tensor, so ``atol`` has no unit, and small
    gradients are judged as strictly as large activations. ``by_dtype`` gives (rtol, atol); a dtype that is
    not in it has the default. ``least`` is for tensors that would be 0 but for rounding, such as the gradient
    of a bias before a batch norm. Integers and Booleans have to be equal. With ``bits``, so has every bit.
    """

    by_dtype: Mapping[torch.dtype, tuple[float, float]] = field(default_factory=dict)
    least: float = 0.0
    bits: bool = False

    def rounds(self, *dtypes: torch.dtype) -> bool:
        """Returns whether numbers that went through these dtypes may differ by more than ``of()``."""
        narrow = [d for d in dtypes if d.is_floating_point and torch.finfo(d).eps > _NARROW]
        return bool(narrow) and not self.bits and not any(dtype in self.by_dtype for dtype in narrow)

    def of(self, *dtypes: torch.dtype) -> tuple[float, float]:
        """Returns the widest (rtol, atol) of some dtypes."""
        pairs = [self.by_dtype.get(dtype) or _default(dtype) for dtype in dtypes]
        return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)


def _default(dtype: torch.dtype) -> tuple[float, float]:
    if dtype in _DEFAULTS:
        return _DEFAULTS[dtype]
    return _FLOAT8 if dtype.is_floating_point else (0.0, 0.0)


@dataclass(frozen=True)
class Difference:
    """How two tensors differ. ``largest`` is the largest absolute error, at ``where`` in the tensor.

    ``relative`` is ``largest`` divided by the magnitude of the reference's element there. ``count`` elements
    of ``total`` are beyond the tolerance. If sizes or dtypes differ, ``what`` says so and the rest is 0.
    """

    what: str = "values"
    largest: float = 0.0
    relative: float = 0.0
    where: tuple[int, ...] = ()
    ours: str = ""
    reference: str = ""
    count: int = 0
    total: int = 0

    def __str__(self) -> str:
        if self.what != "values":
            return self.what
        return (
            f"{self.count} of {self.total} elements; largest error {self.largest:.3g}"
            f" (relative {self.relative:.3g}) at {list(self.where)}: {self.ours}, and {self.reference}"
            f" in the reference"
        )


def difference(
    ours: torch.Tensor,
    reference: torch.Tensor,
    tolerance: Tolerance,
    precisions: Iterable[torch.dtype | None] = (),
    forgive_rounding: bool = False,
) -> Difference | None:
    """Returns how two dense tensors on the CPU differ, or None. NaN equals NaN, unless bits are compared.

    ``precisions`` are the dtypes whose rounding they carry, beside their own. ``forgive_rounding`` judges
    narrow dtypes by the tensor as a whole.
    """
    if ours.shape != reference.shape:
        return Difference(f"size {tuple(ours.shape)}, and {tuple(reference.shape)} in the reference")
    if tolerance.bits and ours.dtype != reference.dtype:
        return Difference(f"dtype {ours.dtype}, and {reference.dtype} in the reference")
    if ours.numel() == 0:
        return None
    if tolerance.bits:
        differs = _differing_bits(ours, reference)
        if not differs.any():
            return None
    wide_ours, wide = _widened(ours, reference)
    error = _error(wide_ours, wide)
    if not tolerance.bits:
        carried = precisions if wide.is_floating_point() or wide.is_complex() else ()
        dtypes = [ours.dtype, reference.dtype, *(p for p in carried if p is not None)]
        rtol, atol = tolerance.of(*dtypes)
        magnitude = wide.abs().to(torch.float64)
        finite = magnitude[magnitude.isfinite()]
        scale = float(finite.max()) if finite.numel() else 0.0
        allowed = torch.where(magnitude.isfinite(), rtol * magnitude, 0.0) + atol * scale
        allowed += tolerance.least
        differs = error > allowed
        if not differs.any():
            return None
        if forgive_rounding and tolerance.rounds(*dtypes) and _is_rounding(error, magnitude):
            return None
    return _described(ours, reference, error, differs)


def _is_rounding(error: torch.Tensor, magnitude: torch.Tensor) -> bool:
    finite = torch.where(magnitude.isfinite(), magnitude, 0.0)
    return float(torch.linalg.vector_norm(error)) <= _ROUNDING * float(torch.linalg.vector_norm(finite))


def _differing_bits(ours: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    shape = (ours.numel(), ours.element_size())
    bytes_of = [t.contiguous().reshape(-1).view(torch.uint8).reshape(shape) for t in (ours, reference)]
    return (bytes_of[0] != bytes_of[1]).any(dim=1).reshape(ours.shape)


def _widened(ours: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if ours.is_complex() or reference.is_complex():
        return ours.to(torch.complex128), reference.to(torch.complex128)
    if ours.is_floating_point() or reference.is_floating_point():
        return ours.to(torch.float64), reference.to(torch.float64)
    return ours.to(torch.int64), reference.to(torch.int64)


def _error(ours: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Returns absolute errors in float64: 0 where both are NaN or the same infinity, else infinite there."""
    if not ours.dtype.is_floating_point and not ours.dtype.is_complex:
        # Large integers that differ may be the same in float64.
        apart = (ours.to(torch.float64) - reference.to(torch.float64)).abs().clamp(min=1.0)
        return torch.where(ours == reference, 0.0, apart)
    same = (ours == reference) | (ours.isnan() & reference.isnan())
    error = (ours - reference).abs().to(torch.float64)
    return torch.where(same, 0.0, torch.where(error.isnan(), torch.inf, error))


def _described(
    ours: torch.Tensor, reference: torch.Tensor, error: torch.Tensor, differs: torch.Tensor
) -> Difference:
    largest = int(torch.where(differs, error, -1.0).argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(largest), error.shape))
    value, expected = ours[where].item(), reference[where].item()
    size = abs(expected)
    apart = float(error[where])
    relative = apart / size if size else (torch.inf if apart else 0.0)
    return Difference(
        largest=apart,
        relative=float(relative),
        where=where,
        ours=_shown(value),
        reference=_shown(expected),
        count=int(differs.sum()),
        total=error.numel(),
    )


def _shown(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
