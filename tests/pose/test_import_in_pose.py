"""What importing torch does when the cards pose as CUDA."""

import sys


def test_import_says_nothing_and_uses_no_card(run, posed_environment):
    code = "import torch\nassert torch.version.cuda and not torch.cuda.is_initialized()"
    assert run([sys.executable, "-W", "error", "-c", code], env=posed_environment) == ""
