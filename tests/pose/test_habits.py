"""What CUDA scripts do, on cards that pose as CUDA. Each habit is a probe of habits_*.py."""

import pytest
from probes import FOLDER, names

FILES = sorted(path.name for path in FOLDER.glob("habits_*.py"))


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in names(file)])
def test_a_habit(posed, file, name):
    posed(file, name)
