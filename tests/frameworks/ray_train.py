"""Trains a small network with Ray Train's TorchTrainer on two workers. Argument: cpu or vdev.

Ray counts cards with NVIDIA's driver library, which finds none: num_gpus tells it. Its ``prepare_model`` then
moves the model to the worker's card and wraps it in DDP.
"""

import json
import os
import sys
import tempfile

import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig


def train() -> dict[str, object]:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    model = ray.train.torch.prepare_model(network)
    data = torch.utils.data.TensorDataset(torch.randn(48, 8))
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for (inputs,) in loader:
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"device": ray.train.torch.get_device().type, "losses": losses}


use_gpu, config = len(sys.argv) == 1, None
if "vdev" in sys.argv:
    from vccl.integrations.ray import VdevConfig

    config = VdevConfig()
os.environ["RAY_AUTH_MODE"] = "disabled"  # Ray would write a token into the user's home
ray.init(num_cpus=2, num_gpus=2 if use_gpu else 0, include_dashboard=False)
with tempfile.TemporaryDirectory() as folder:
    trainer = ray.train.torch.TorchTrainer(
        train,
        torch_config=config,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=use_gpu),
        run_config=RunConfig(storage_path=folder),
    )
    result = trainer.fit()
print("RESULT", json.dumps(result.return_value))
