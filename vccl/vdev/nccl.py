"""Answers that the cards do not use NCCL. The other names of ``torch.cuda.nccl`` are refused (refused.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def is_available(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns False, because NCCL needs GPUs."""
    return False
