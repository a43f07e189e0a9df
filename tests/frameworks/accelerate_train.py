"""Trains a small network with accelerate on cards under their own name, or on the CPU. Argument: cpu.

On cards it first checks that accelerate does not take the CPU without a word.
"""

import json
import sys

import accelerate
import torch

on_cpu = "cpu" in sys.argv
if not on_cpu:
    from vccl.integrations.accelerate import refuse_the_cpu, use_cards

    refuse_the_cpu()
    try:
        accelerate.Accelerator()
    except RuntimeError as error:
        if "use_cards()" not in str(error):
            raise
    else:
        sys.exit("accelerate has taken the CPU without a word.")
    use_cards()
accelerator = accelerate.Accelerator(cpu=on_cpu)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
batches = torch.utils.data.DataLoader(torch.randn(48, 8), batch_size=4)
model, optimizer, loader = accelerator.prepare(
    network, torch.optim.AdamW(network.parameters(), 1e-2), batches
)
losses = []
for inputs in loader:
    loss = (model(inputs) - inputs).square().mean()
    losses.append(accelerator.gather(loss.detach()).mean().item())
    optimizer.zero_grad()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
accelerator.print("RESULT", json.dumps({"device": accelerator.device.type, "losses": losses}))
accelerator.end_training()
