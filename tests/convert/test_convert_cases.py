"""What the conversion changes, piece by piece, and that it changes nothing a second time."""

import ast
import importlib.util
from pathlib import Path

import pytest
from conversion_cases import CASES, UNCHANGED

from vccl.convert.converter import convert_text

IMPORT = "import torch\n"
SCRIPTS = sorted(Path(__file__).parent.glob("cuda_*.py"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_a_piece_is_converted(before, after, end):
    """All beside the change stays, with any line ending, and nothing changes a second time."""
    if "import torch" not in before + after:
        before, after = IMPORT + before, IMPORT + after
    before = f"{before}\n\n\f\nif  a :   # é cuda\n    b"
    after = f"{after}\n\n\f\nif  a :   # é cuda\n    b"
    converted = convert_text(before.replace("\n", end)).text
    assert converted == after.replace("\n", end)
    ast.parse(converted)
    assert convert_text(converted).text == converted


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED)
def test_what_is_something_else_or_not_certain_stays(text):
    text = text if "import torch" in text else IMPORT + text
    assert convert_text(text).text == text


def test_an_init_file_keeps_its_imports():
    text = "import torch\nfrom torch.cuda import Event\ne = Event()\n"
    assert "import Event" in convert_text(text, is_package=True).text
    exported = f'__all__ = ["Event"]\n{text}'
    assert "import Event" in convert_text(exported).text


def test_no_python_is_an_error():
    with pytest.raises(SyntaxError, match="line 2"):
        convert_text("x = 1\ny = = 2\n")


@pytest.mark.daily
def test_a_second_run_changes_nothing_in_real_code():
    """Torch's own sources name CUDA in many ways that scripts do not."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    files = [*(torch / "nn" / "parallel").glob("*.py"), torch / "utils" / "checkpoint.py", *SCRIPTS]
    changed = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        converted = convert_text(text).text
        ast.parse(converted)
        assert convert_text(converted).text == converted, file
        changed += converted != text
    assert changed > 1
