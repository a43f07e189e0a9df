"""Trains minGPT-ddp of pytorch/examples on two devices. Arguments: the folder of its sources; cpu.

Its main.py runs as it is, but for a seed. It asks for an accelerator and stops without one, so on the CPU a
loop of our own trains its model on its data, with gloo.
"""

import io
import json
import os
import random
import re
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

EPOCHS, BATCH, BLOCK = 6, 4, 16
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 32, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


class Copy(io.StringIO):
    """Keeps what is printed, and prints it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        return super().write(text)


def run_main(folder: Path) -> list[float]:
    """Runs main.py. Returns the losses that it prints: two for each epoch, of training and of evaluation."""
    settings = {
        f"+gpt_config.{name}" if name.endswith("pdrop") else f"gpt_config.{name}": value
        for name, value in SIZES.items()
    }
    settings |= {
        "data_config.path": Path("input.txt").absolute(),
        "data_config.block_size": BLOCK,
        "data_config.truncate": 1.0,
        "trainer_config.max_epochs": EPOCHS,
        "trainer_config.batch_size": BATCH,
        "trainer_config.data_loader_workers": 0,
        "trainer_config.use_amp": False,
        "trainer_config.snapshot_path": Path("snapshot.pt").absolute(),
    }
    sys.argv = ["main.py", *(f"{name}={value}" for name, value in settings.items())]
    sys.stdout = Copy()
    runpy.run_path(str(folder / "main.py"), run_name="__main__")
    text, sys.stdout = sys.stdout.getvalue(), sys.__stdout__
    return [float(loss) for loss in re.findall(r"Loss ([0-9.]+)", text)]


def run_on_cpu() -> list[float]:
    """Does what main.py does. Returns the same losses."""
    from char_dataset import CharDataset, DataConfig
    from model import GPT, GPTConfig, OptimizerConfig, create_optimizer

    dist.init_process_group("gloo")
    data = CharDataset(DataConfig("input.txt", BLOCK, 0.9))
    length = int(len(data) * 0.9)
    parts = torch.utils.data.random_split(data, [length, len(data) - length])
    model = GPT(GPTConfig(**SIZES, vocab_size=data.vocab_size, block_size=BLOCK))
    optimizer = create_optimizer(model, OptimizerConfig(3e-4, 0.1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    samplers = [torch.utils.data.DistributedSampler(part) for part in parts]
    loaders = [
        torch.utils.data.DataLoader(part, BATCH, sampler=s) for part, s in zip(parts, samplers, strict=True)
    ]
    losses = []
    for epoch in range(EPOCHS):
        samplers[0].set_epoch(epoch + 1)
        for loader in loaders:
            for index, (source, targets) in enumerate(loader):
                loss = model(source, targets)[1]
                if index == 0:
                    losses.append(loss.item())
                if loader is loaders[0]:
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
    dist.destroy_process_group()
    return losses


folder, on_cpu = Path(sys.argv[1]), "cpu" in sys.argv
sys.path.insert(0, str(folder))
letters = random.Random(0)
Path("input.txt").write_text("".join(letters.choices("abcdefgh", k=130)))
torch.manual_seed(0)
losses = run_on_cpu() if on_cpu else run_main(folder)
if os.environ["RANK"] == "0":
    device = "cpu" if on_cpu else torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    print("RESULT", json.dumps({"device": device, "losses": losses}))
