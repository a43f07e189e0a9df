"""Trains a small network with Lightning on two devices. Arguments: accelerator, strategy and precision."""

import json
import sys

import lightning
import torch

accelerator, strategy, precision = sys.argv[1:4]
if accelerator == "vdev":
    import vccl.integrations.lightning  # noqa: F401


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layers(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


lightning.seed_everything(0)
model = Model()
trainer = lightning.Trainer(
    accelerator=accelerator,
    devices=2,
    strategy=strategy,
    precision=precision,
    max_steps=6,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))
if trainer.global_rank == 0:
    print("RESULT", json.dumps({"device": trainer.strategy.root_device.type, "losses": model.losses}))
