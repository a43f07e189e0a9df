"""Inputs that every rank can make for every other, and what collectives make of them, computed in float64."""

import torch

INTEGERS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [torch.bool, *INTEGERS, *FLOATS]
# What one rounding of the result costs; float32 and float64 are rounded once a rank.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6, torch.float64: 1e-14}


def part(rank: int, shape: tuple[int, ...] | int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The tensor of a rank, on the CPU. Integers are small, so that no product overflows."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    shape = (shape,) if isinstance(shape, int) else shape
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in FLOATS:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def reduced(
    size: int, shape: tuple[int, ...] | int, dtype: torch.dtype, op: str, seed: int = 0
) -> torch.Tensor:
    """What all_reduce makes of every rank's part(), of that dtype."""
    wide = torch.float64 if dtype in FLOATS else torch.int64
    parts = torch.stack([part(rank, shape, dtype, seed).to(wide) for rank in range(size)])
    if op in ("SUM", "AVG"):
        result = parts.sum(0)
        if op == "AVG":
            result = result / size if dtype in FLOATS else torch.div(result, size, rounding_mode="trunc")
    elif op == "PRODUCT":
        result = parts.prod(0)
    else:
        result = parts.amin(0) if op == "MIN" else parts.amax(0)
    return result.to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    actual = actual.cpu()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    if expected.dtype in FLOATS:
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(
            actual.double(),
            expected.double(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text: f"{what}: {text}",
        )
    else:
        assert torch.equal(actual.long(), expected.long()), f"{what}: {actual} instead of {expected}"
