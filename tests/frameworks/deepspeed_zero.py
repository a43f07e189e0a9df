"""Trains a small network with DeepSpeed. Arguments: the stage of ZeRO; vdev, for cards under their name."""

import json
import os
import sys

if "vdev" in sys.argv:
    import vccl.integrations.deepspeed  # noqa: F401  # before deepspeed

import deepspeed
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": int(sys.argv[1])},
        "steps_per_print": 1000,
    },
)
generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
losses = []
for _ in range(6):
    inputs = torch.randn(4, 8, generator=generator).to(engine.device)
    loss = (engine(inputs) - inputs).square().mean()
    losses.append(loss.item())
    engine.backward(loss)
    engine.step()
if os.environ["RANK"] == "0":
    print("RESULT", json.dumps({"device": torch.device(engine.device).type, "losses": losses}))
