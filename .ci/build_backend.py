"""Builds the package with scikit-build-core, and mends what it makes of an editable install.

Two things in such an install concern whoever imports anything in that environment:

- scikit-build-core puts the folders of the sources on ``sys.path``, where the import hook of the install
  needs none. Every folder in them (``launch``, ``testing``, and those beside this one) could be imported.
- pytest looks through the files of a package that has a plugin, to rewrite their assertions. It finds the
  import hook among them, and warns that this was imported already. A module whose docstring says so is left
  out.
"""

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as original
from scikit_build_core.build import *  # noqa: F403

HOOK = "_editable_skbc_vccl"


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the wheel of an editable install. Returns its name."""
    name = original.build_editable(wheel_directory, config_settings, metadata_directory)
    mend(Path(wheel_directory, name))
    return name


def mend(wheel: Path) -> None:
    """Changes the two files of the import hook in a wheel, and what the wheel tells about them."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {entry: archive.read(entry) for entry in archive.infolist()}
    by_name = {entry.filename: entry for entry in contents}
    path, hook = by_name[f"{HOOK}.pth"], by_name[f"{HOOK}.py"]
    lines = contents[path].decode().splitlines(keepends=True)
    contents[path] = "".join(line for line in lines if line.startswith("import ")).encode()
    contents[hook] = b'"""PYTEST_DONT_REWRITE"""\n' + contents[hook]
    (record,) = (entry for entry in contents if entry.filename.endswith(".dist-info/RECORD"))
    contents[record] = "".join(
        _record_of(entry.filename, contents[entry]) if entry in (path, hook) else line
        for line in contents[record].decode().splitlines(keepends=True)
        for entry in [by_name.get(line.partition(",")[0])]
    ).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in contents.items():
            archive.writestr(entry, content)


def _record_of(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}\n"
