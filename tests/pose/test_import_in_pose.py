"""What importing torch does when the cards pose as CUDA."""

import sys


def test_import_says_nothing_and_uses_no_card(run, posed_environment):
    code = "import torch\nassert torch.version.cuda and not torch.cuda.is_initialized()"
    assert run([sys.executable, "-W", "error", "-c", code], env=posed_environment) == ""


def test_variables_may_be_set_after_the_import(run, posed_environment):
    """As with CUDA: they are read when the first question about cards is asked."""
    code = (
        "import os, torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '2'\n"
        "assert torch.cuda.device_count() == 1\nassert torch.cuda.get_device_properties(0).pci_bus_id == 3\n"
    )
    run([sys.executable, "-c", code], env=posed_environment)


def test_configuration_names_the_cards(run, posed_environment):
    output = run(
        [sys.executable, "-c", "import torch; print(torch.__config__.show())"], env=posed_environment
    )
    assert "CUDA: virtual cards of vccl" in output
