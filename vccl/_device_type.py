"""Names the device type of the cards, for code that must not write it out."""


def device_type() -> str:
    """Returns the type of the cards' ``torch.device``."""
    return "vdev"
