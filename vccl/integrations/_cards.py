"""Reads which cards a framework's user asks for."""

from vccl import vdev


def cards_of(devices: int | str | list[int]) -> list[int]:
    """Returns the cards that Lightning's ``Trainer(devices=...)`` asks for.

    Args:
        devices: a number of cards, or -1 for all; their indices, in a list or as "0,1"; a number as a string.

    Raises:
        ValueError: there is no such card, or the number is neither positive nor -1.
    """
    if isinstance(devices, str):
        # Lightning takes "2" for two devices, and "2," for the device 2.
        devices = [int(part) for part in devices.split(",") if part] if "," in devices else int(devices)
    count = vdev.device_count()
    if isinstance(devices, int):
        if devices < -1 or devices == 0:
            raise ValueError(f"devices={devices} asks for no cards. Give a number above 0, or -1 for all.")
        devices = list(range(count if devices == -1 else devices))
    for index in devices:
        if not 0 <= index < count:
            raise ValueError(
                f"There is no vdev:{index}: this process sees {count} cards (VDEV_DEVICE_COUNT)."
            )
    return devices
