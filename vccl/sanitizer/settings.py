"""Reads the variables of the sanitizer."""

from __future__ import annotations

import dataclasses
import os

_WORDS = {"1", "raise", "uninit", "useless"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Says what is looked for, and what is done with what is found."""

    raises: bool = False
    uninit: bool = False
    useless: bool = False
    prints: bool = True
    log: str | None = None
    """The path of the file for reports as JSON, without the rank or the process at its end."""
    suppressions: str | None = None
    """The path of the file that names what is not reported."""


def of_environment() -> Settings | None:
    """Returns the settings that the environment asks for, or None if it asks for no sanitizer.

    Raises:
        ValueError: VDEV_SANITIZER has a value that is not allowed.
        OSError: no file can be written where VDEV_SANITIZER_LOG is.
    """
    value = os.environ.get("VDEV_SANITIZER", "").strip()
    if value in ("", "0"):
        return None
    words = {word.strip() for word in value.split(",")}
    if unknown := words - _WORDS:
        raise ValueError(
            f"VDEV_SANITIZER='{value}' is not valid: {sorted(unknown)[0]!r} is none of 0, 1, raise, uninit "
            "and useless, which commas may join"
        )
    log = os.environ.get("VDEV_SANITIZER_LOG") or None
    if log is not None:
        _check_folder(os.path.dirname(os.path.abspath(log)), log)
    return Settings(
        raises="raise" in words,
        uninit="uninit" in words,
        useless="useless" in words,
        log=log,
        suppressions=os.environ.get("VDEV_SANITIZER_SUPPRESSIONS") or None,
    )


def _check_folder(folder: str, log: str) -> None:
    """Raises OSError if no report could be written to the folder. The first report would come too late."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"VDEV_SANITIZER_LOG={log!r}: there is no folder {folder!r}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"VDEV_SANITIZER_LOG={log!r}: this process may not write to {folder!r}")
