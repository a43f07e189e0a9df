"""Finds scripts, reads them with their encoding, shows changes and writes them."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import shutil
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def find_scripts(paths: list[Path]) -> Iterator[Path]:
    """Yields the files of a command line, each once: a file as it is given, and *.py in and below a folder.

    Hidden folders and files, virtual environments and installed packages are passed over.
    """
    seen: set[Path] = set()
    for path in paths:
        for found in _scripts_below(path) if path.is_dir() else [path]:
            real = found.resolve()
            if real not in seen:
                seen.add(real)
                yield found


def _scripts_below(top: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(top):
        folder = Path(name)
        folders[:] = sorted(inner for inner in folders if _is_searched(folder / inner))
        for file in sorted(files):
            if file.endswith(".py") and not file.startswith(".") and (folder / file).is_file():
                yield folder / file


def _is_searched(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in ("__pycache__", "site-packages", "node_modules"):
        return False
    return not any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))


@dataclass(frozen=True)
class Script:
    """The text of a file as it stands there, with its line endings."""

    path: Path
    encoding: str  # `utf-8-sig` if the file begins with a byte order mark
    text: str

    @staticmethod
    def read(path: Path) -> Script:
        """Reads a file.

        Raises:
            OSError: the file cannot be read.
            SyntaxError: its coding line names no encoding.
            UnicodeError: its bytes are not of its encoding.
        """
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Script(path, encoding, content.decode(encoding))

    def write(self, text: str) -> None:
        """Replaces the file's text at once. The file keeps its mode, and a link stays a link."""
        real = self.path.resolve()
        handle, temporary = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode(self.encoding))
            shutil.copymode(real, temporary)
            os.replace(temporary, real)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def diff(self, text: str) -> bytes:
        """Returns the change to `text` as a unified diff, in the file's encoding."""
        name = str(self.path)
        prefixes = ("", "") if self.path.is_absolute() else ("a/", "b/")
        lines = difflib.unified_diff(_lines(self.text), _lines(text), prefixes[0] + name, prefixes[1] + name)
        marked = (
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )
        return "".join(marked).encode(self.encoding.removesuffix("-sig"), errors="surrogateescape")


def _lines(text: str) -> list[str]:
    """Splits as patch and git do: at line feeds alone."""
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]
