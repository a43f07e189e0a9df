"""Names the device type of the cards, for code that must not write it out."""

from vccl import _C


def device_type() -> str:
    """Returns the type of the cards' ``torch.device``: "vdev", or "cuda" where they pose as CUDA."""
    return _C._device_name()


def backend_name() -> str:
    """Returns the name of the backend for the cards: "vccl", or "nccl" where they pose as CUDA."""
    return "nccl" if device_type() == "cuda" else "vccl"
