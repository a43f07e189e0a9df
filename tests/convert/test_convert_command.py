"""The command line: what it prints, what it writes, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vccl.convert.cli import main

BEFORE = "import torch\n\ntorch.cuda.synchronize()  # é\n"
AFTER = "import torch\n\ntorch.accelerator.synchronize()  # é\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in the current folder that has something to change."""
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(BEFORE, encoding="utf-8")
    return path


def test_without_options_it_shows_the_change_alone(script, capfdbinary):
    assert main([str(script)]) == 0
    shown = capfdbinary.readouterr()
    assert shown.out.decode().splitlines() == [
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1,3 +1,3 @@",
        " import torch",
        " ",
        "-torch.cuda.synchronize()  # é",
        "+torch.accelerator.synchronize()  # é",
    ]
    assert shown.err.decode() == "1 files: 1 to change, 0 places left, 0 errors\n"
    assert script.read_text(encoding="utf-8") == BEFORE


@pytest.mark.parametrize("text", [BEFORE, BEFORE.rstrip(), BEFORE.replace("\n", "\r\n"), "\f" + BEFORE])
def test_the_diff_is_a_patch(script, capfdbinary, text):
    script.write_bytes(text.encode())
    assert main([str(script)]) == 0
    patch = capfdbinary.readouterr().out
    subprocess.run(["git", "apply", "-"], input=patch, check=True)
    assert script.read_bytes() == text.replace("cuda", "accelerator").encode()


def test_write_changes_the_file_and_a_second_run_nothing(script, capsys):
    assert main(["--write", str(script)]) == 0
    assert script.read_text(encoding="utf-8") == AFTER
    assert "1 files: 1 changed" in capsys.readouterr().err
    before = script.stat()
    assert main(["--write", str(script)]) == 0
    assert "1 files: 0 changed" in capsys.readouterr().err
    assert (script.stat().st_ino, script.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_check_says_whether_something_is_to_change(script):
    assert main(["--check", str(script)]) == 1
    assert script.read_text(encoding="utf-8") == BEFORE
    assert main(["--check", "--write", str(script)]) == 1
    assert main(["--check", str(script)]) == 0


def test_quiet_prints_errors_alone(script, capsys):
    script.write_text(f"{BEFORE}torch.cuda.nvtx.mark('a')\n", encoding="utf-8")
    assert main(["--quiet", "--check", str(script)]) == 1
    assert capsys.readouterr() == ("", "")
    assert main(["--quiet", "gone.py"]) == 2
    assert "gone.py" in capsys.readouterr().err


def test_the_report_names_file_and_line(script, capsys):
    script.write_text("import torch\n\ntorch.cuda.nvtx.mark('a')\n")
    assert main([str(script)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Left as it is:", "  train.py:3: torch.cuda.nvtx.mark"]
    assert "record_function" in lines[2]
    assert lines[3] == "1 files: 0 to change, 1 places left, 0 errors"


def test_a_file_with_an_error_does_not_stop_the_others(script, capsys):
    Path("a.py").write_text("def f(:\n")
    Path("b.py").write_bytes(b"# coding: utf-8\nx = '\xff'\n")
    Path("c.py").write_text("# coding: klingon\n")
    Path("d.py").write_bytes(b"x = 1\0\n")
    assert main(["--write", "--check", "."]) == 2
    errors = capsys.readouterr().err
    assert "a.py: line 1" in errors and "b.py: " in errors and "c.py: " in errors and "d.py: " in errors
    assert "5 files: 1 changed, 0 places left, 4 errors" in errors
    assert script.read_text(encoding="utf-8") == AFTER


@pytest.mark.parametrize(
    "content",
    [
        BEFORE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + BEFORE.encode(),
        f"# -*- coding: latin-1 -*-\n{BEFORE}".encode("latin-1"),
        f"# coding: cp1252\r\n{BEFORE}torch.load('\u20ac')".encode("cp1252"),
        BEFORE.rstrip().encode(),
    ],
    ids=["CRLF", "byte order mark", "latin-1", "cp1252", "no line end"],
)
def test_encoding_and_line_ends_are_kept(script, content):
    script.write_bytes(content)
    assert main(["--write", str(script)]) == 0
    assert script.read_bytes() == content.replace(b"torch.cuda.", b"torch.accelerator.")


def test_mode_and_links_are_kept(script):
    script.chmod(0o750)
    Path("link.py").symlink_to(script)
    assert main(["--write", "link.py", str(script)]) == 0
    assert Path("link.py").is_symlink()
    assert script.read_text(encoding="utf-8") == AFTER
    assert script.stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in Path().iterdir()) == ["link.py", "train.py"]


def test_a_write_that_fails_leaves_the_file(script, monkeypatch, capsys):
    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    assert main(["--write", str(script)]) == 2
    assert "train.py: no" in capsys.readouterr().err
    assert script.read_text(encoding="utf-8") == BEFORE
    assert [path.name for path in Path().iterdir()] == ["train.py"]


def test_folders_are_searched_but_for_hidden_ones_and_environments(script, capsys):
    environment, conda = Path("env"), Path("conda")
    for folder in (Path("pkg/sub"), Path(".git"), environment, conda, Path("pkg/__pycache__"), Path("x.py")):
        folder.mkdir(parents=True)
        (folder / "m.py").write_text(BEFORE, encoding="utf-8")
    (environment / "pyvenv.cfg").touch()
    (conda / "conda-meta").mkdir()
    Path(".hidden.py").write_text(BEFORE, encoding="utf-8")
    Path("notes.txt").write_text(BEFORE, encoding="utf-8")
    assert main(["."]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("---")] == [
        "--- a/train.py",
        "--- a/pkg/sub/m.py",
        "--- a/x.py/m.py",
    ]
    assert main(["--check", "notes.txt", ".git/m.py"]) == 1


def test_help_documents_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "exit codes:" in capsys.readouterr().out


def test_without_libcst_it_says_how_to_install_it(run):
    hide = "import runpy, sys; sys.modules['libcst'] = None"
    code = f"{hide}; runpy.run_module('vccl.convert', run_name='__main__')"
    output = run([sys.executable, "-c", code, "train.py"], status=2)
    assert "pip install 'vccl[convert]'" in output


def test_nothing_else_of_the_package_imports_libcst(run):
    code = "import sys, torch, vccl, vccl.convert; print('libcst' in sys.modules)"
    assert run([sys.executable, "-c", code]) == "False\n"
