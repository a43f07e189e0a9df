"""Tests what the integrations do without their frameworks. tests/frameworks runs them with these."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

from vccl import vdev
from vccl.integrations import _cards, _needs

PACKAGES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "ray": "ray",
    "torchft": "torchft",
    "transformers_spec": "transformers",
}


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch):
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, f"vccl.integrations.{name}", raising=False)


@pytest.mark.parametrize("name", PACKAGES)
def test_missing_framework_is_named(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match=rf"pip install {PACKAGES[name]}==\d+\.\d+"):
        importlib.import_module(f"vccl.integrations.{name}")


@pytest.mark.parametrize("name", PACKAGES)
def test_pose_needs_no_integration(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
    monkeypatch.setattr(_needs, "device_type", lambda: "cuda")
    with pytest.raises(ImportError, match="leave the import out, or VDEV_POSE"):
        importlib.import_module(f"vccl.integrations.{name}")


def test_deepspeed_must_not_be_imported_yet(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
    monkeypatch.setitem(sys.modules, "deepspeed", object())
    with pytest.raises(ImportError, match="before deepspeed"):
        importlib.import_module("vccl.integrations.deepspeed")


def test_nothing_is_imported_unasked():
    code = "import sys, torch, vccl; print([name for name in sys.modules if 'integrations' in name])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("devices", "cards"),
    [
        (2, [0, 1]),
        (-1, [0, 1, 2]),
        ([2, 0], [2, 0]),
        ("2", [0, 1]),
        ("-1", [0, 1, 2]),
        ("2,", [2]),
        ("0,2", [0, 2]),
    ],
)
def test_cards_of(devices, cards, monkeypatch):
    monkeypatch.setattr(vdev, "device_count", lambda: 3)
    assert _cards.cards_of(devices) == cards


@pytest.mark.parametrize("devices", [4, [3], "1,3"])
def test_card_that_is_not_there(devices, monkeypatch):
    monkeypatch.setattr(vdev, "device_count", lambda: 3)
    with pytest.raises(ValueError, match="There is no vdev:3: this process sees 3 cards"):
        _cards.cards_of(devices)


@pytest.mark.parametrize("devices", [0, -2, "0"])
def test_no_cards(devices):
    with pytest.raises(ValueError, match="asks for no cards"):
        _cards.cards_of(devices)
