"""The modules of vccl suit every Python that the package promises, as far as they are on this machine."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from toml_files import read_toml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("import_without_torch.py")
PROMISED = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@cache
def find_python(version):
    """A Python of that version on the PATH, or in pyenv, whose commands on the PATH may lead nowhere."""
    if version == OWN:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for candidate in [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def test_the_promises_agree():
    settings = read_toml((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["requires-python"] == f">={PROMISED[0]}"
    assert settings["tool"]["ruff"]["target-version"] == f"py{PROMISED[0].replace('.', '')}"
    assert settings["tool"]["mypy"]["python_version"] == PROMISED[0]
    assert f"Python {PROMISED[0]} to {PROMISED[-1]}" in (ROOT / "README.md").read_text()
    assert OWN in PROMISED


@pytest.mark.parametrize("version", PROMISED)
def test_every_module_can_be_imported(run, version):
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    # Without what is installed: a stand-in takes the place of torch.
    assert ", 0 not" in run([python, "-S", SCRIPT])


def test_what_a_python_does_not_have_is_found(run, tmp_path):
    for folder in ("vccl", "vccl_entry", "launch", "tests/project"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "vccl" / "__init__.py").write_text("")
    (tmp_path / "vccl" / "_device_type.py").write_text("")
    (tmp_path / "vccl" / "newer.py").write_text("from typing import NotInAnyPython\n")
    script = tmp_path / "tests" / "project" / SCRIPT.name
    script.write_text(SCRIPT.read_text())
    output = run([sys.executable, "-S", script], status=1)
    assert "vccl.newer: ImportError: cannot import name 'NotInAnyPython'" in output
