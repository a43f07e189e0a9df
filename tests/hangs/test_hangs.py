"""Each job that hangs or breaks is explained: play.py plays them all, several at a time."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_every_hang_is_explained():
    played = subprocess.run(
        [sys.executable, HERE / "play.py"], capture_output=True, text=True, timeout=1200, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr[-3000:]


def test_every_script_says_what_it_is():
    for path in sorted((HERE / "jobs").rglob("*.py")):
        text = path.read_text()
        assert text.startswith('"""'), path
        assert "EXPECT = " in text and "def job(rank" in text, path
