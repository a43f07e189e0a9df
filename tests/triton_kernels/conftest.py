"""Triton is not installed with torch for the CPU, and is larger than it: `make triton` runs these tests."""

import pytest
import torch

from vccl._device_type import device_type

try:
    import triton  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def card() -> str:
    """The device type of the cards, which may pose as CUDA."""
    return device_type()


@pytest.fixture(autouse=True)
def clean_card(card: str):
    """Seeds, and forgets the errors that a test has asked for."""
    torch.manual_seed(0)
    yield
    getattr(torch, card).clear_errors()
