"""Trains two replicas with torchft, one of which dies after three steps and comes back. Argument: cpu, vdev.

Each replica is a process of its own. When the second one is back, torchft makes a new group, and the newcomer
gets the survivor's weights. So the losses are those of a run without a death. On vdev the replica dies later
in its step, and the survivor's collective fails.
"""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroup

STEPS, FATAL_STEP = 6, 3


def group_for(kind: str) -> ProcessGroup:
    """Returns torchft's process group for a device."""
    timeout = timedelta(seconds=20)
    if kind == "vdev":
        from vccl.integrations.torchft import ProcessGroupVccl

        return ProcessGroupVccl(timeout)
    return (ProcessGroupGloo if kind == "cpu" else ProcessGroupNCCL)(timeout)


def train(replica: int, life: int, kind: str) -> dict[str, object]:
    """Trains a replica to the end. Returns its device and losses."""
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, replica)
    if kind != "cpu":
        torch.accelerator.set_device_index(replica)
    torch.manual_seed(replica + 10 * life)  # torchft has to bring the weights
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device)
    inner = torch.optim.SGD(network.parameters(), 0.1)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=group_for(kind),
        min_replica_size=2,
        state_dict=lambda: {"network": network.state_dict(), "optimizer": inner.state_dict()},
        load_state_dict=lambda state: (
            network.load_state_dict(state["network"]),
            inner.load_state_dict(state["optimizer"]),
        ),
        replica_id=f"replica{replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        use_async_quorum=False,
    )
    model, optimizer = DistributedDataParallel(manager, network), Optimizer(manager, inner)
    losses: dict[int, float] = {}
    while (step := manager.current_step()) < STEPS:
        last = replica == 1 and life == 0 and step == FATAL_STEP
        if last and kind != "vdev":
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(100 * step + replica)
        inputs = torch.randn(4, 8, generator=generator).to(device)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        losses[step] = loss.item()
        optimizer.step()
    manager.shutdown(wait=False)
    return {"device": next(network.parameters()).device.type, "losses": list(losses.values())}


def start(replica: int, life: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *sys.argv[1:], str(replica), str(life)])


if sys.argv[-1].isdigit():
    replica, life = int(sys.argv[-2]), int(sys.argv[-1])
    result = train(replica, life, sys.argv[1] if len(sys.argv) > 3 else "cuda")
    if replica == 0:
        print("RESULT", json.dumps(result), flush=True)
    os._exit(0)
lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, heartbeat_timeout_ms=1000)
os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.address()
survivor, victim = start(0, 0), start(1, 0)
if victim.wait() != -signal.SIGKILL:
    sys.exit("The replica did not die.")
newcomer = start(1, 1)
sys.exit(survivor.wait() or newcomer.wait())
