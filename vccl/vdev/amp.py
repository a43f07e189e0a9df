"""What torch.amp asks of a device."""

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("vdev", dtype=...)`` takes."""
    return [torch.float16, torch.bfloat16]
