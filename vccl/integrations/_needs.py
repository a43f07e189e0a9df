"""Checks, before an integration imports its framework, that it can work."""

import importlib.util

from vccl._device_type import device_type


def needs(package: str, tried: str) -> None:
    """Checks that a package is installed, and that the cards have their own name.

    Args:
        package: the name under which the package is installed and imported.
        tried: the version that the integration was tried with.

    Raises:
        ImportError: one of the two is not so.
    """
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"vccl's integration needs the package {package}, which is not installed. It was tried with "
            f"version {tried}: pip install {package}=={tried}",
            name=package,
        )
    if device_type() != "vdev":
        raise ImportError(
            f"vccl's integration with {package} is for cards under their own name, vdev, and VDEV_POSE=cuda "
            f"is set. {package} finds cards that pose as CUDA by itself: leave the import out, or VDEV_POSE."
        )
