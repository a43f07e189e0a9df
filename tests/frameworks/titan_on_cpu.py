"""Runs torchtitan on the CPU with gloo. It asks torch.cpu for functions that are not there."""

import os
import types

import torch

cpu: dict[str, object] = {
    "current_device": lambda: 0,
    "get_device_name": lambda device: "CPU",
    "get_device_properties": lambda device: types.SimpleNamespace(total_memory=1 << 30),
    "memory_stats": lambda device: {},
    "reset_peak_memory_stats": lambda: None,
    "empty_cache": lambda: None,
}
for name, function in cpu.items():
    setattr(torch.cpu, name, function)
torch._utils._get_available_device_type = lambda: "cpu"
os.environ["LOCAL_RANK"] = "0"  # there is no cpu:1

from torchtitan.train import Trainer, main  # noqa: E402

main(Trainer)
