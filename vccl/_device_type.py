"""Names the device type of the cards, for code that must not write it out."""

from vccl import _C

# It is fixed when the module is loaded. Dynamo traces the reading of a string, but not a call into C++.
_TYPE = _C._device_name()


def device_type() -> str:
    """Returns the type of the cards' ``torch.device``: "vdev", or "cuda" where they pose as CUDA."""
    return _TYPE


def backend_name() -> str:
    """Returns the name of the backend for the cards: "vccl", or "nccl" where they pose as CUDA."""
    return "nccl" if device_type() == "cuda" else "vccl"
