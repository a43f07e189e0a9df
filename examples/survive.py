"""Trains through faults in three ways, and ends with the loss of the run that met none.

python examples/survive.py [--hosts 2]

Once the ranks start again from a checkpoint whenever one of them has failed (vrun --max-restarts). The loss
is the same to the bit: the same ranks add up the same numbers. Once the ranks that are left go on without
those that have died (shrink_group). They share out the same samples, so the loss is the same but for the
rounding of sums that are added up in another order. Once torchft repeats the steps that have failed, if it is
installed (survive_torchft.py). The faults come from plans (vccl.faults), so each run meets the same ones.
"""

import argparse
import datetime
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from vccl import faults

STEPS = 12
SAMPLES = 12  # of one step, of all ranks together
ROUNDING = 1e-12

# One fault ends each attempt but the last, and others only cost time. `restart` is the number of the attempt.
RESTART_PLAN = """\
restart=0, rank=1, op=all_reduce, n=3, at=during, do=kill
restart=1, rank=0, op=all_reduce, step=4, at=before, do=segv
restart=2, rank=1, op=all_reduce, step=5, at=before, do=raise:RuntimeError
restart=3, rank=0, op=all_reduce, step=6, at=after, do=exit:3
restart=4, rank=1, op=all_reduce, step=7, at=during, do=abort
restart=5, rank=0, op=all_reduce, step=8, at=before, do=oom
restart=6, rank=1, phase=checkpoint, n=2, do=kill
restart=7, rank=0, phase=init, at=before, do=late:0.1
restart=7, rank=1, op=all_reduce, n=1, at=during, do=stop:0.2
rank=1, op=all_reduce, p=0.2, at=before, do=stall:0.02
op=all_reduce, do=slow:1.5
seed=1
"""
# Where there are several hosts, the links between them are cut, too.
LINK_PLAN = """\
rank=0, op=all_reduce, step=2, at=during, do=reset-link
rank=1, op=all_reduce, step=9, at=before, do=cut-link:0.1
"""
# Of four ranks, two die, and two are late.
SHRINK_PLAN = """\
rank=1, op=all_reduce, step=3, at=during, do=kill
rank=3, op=all_reduce, step=7, at=before, do=raise:RuntimeError
rank=2, op=all_reduce, step=5, at=during, do=stall:0.1
rank=0, op=all_reduce, n=2, at=after, do=stop:0.1
"""


class Training:
    """A small model, whose state after a step depends on the samples of the steps alone."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double().to(device)
        self.loss = 0.0

    def samples(self, step: int, own: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns those of a step's samples that are this rank's."""
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(SAMPLES, 8, dtype=torch.float64, generator=generator)
        return x[own].to(self.device), x.sum(1, keepdim=True).sin()[own].to(self.device)

    def share(self, step: int, own: slice) -> torch.Tensor:
        """Returns the loss and the gradients of this rank's samples. They add up to those of all."""
        x, y = self.samples(step, own)
        loss = nn.functional.mse_loss(self.net(x), y, reduction="sum") / SAMPLES
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        return torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])

    def apply(self, everything: torch.Tensor) -> None:
        """Changes the parameters by the sum of all shares. Nothing has changed if that has failed."""
        self.loss = everything[0].item()  # raises what has become of the all_reduce
        with torch.no_grad():
            at = 1
            for parameter in self.net.parameters():
                parameter.sub_(0.1 * everything[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def step(self, step: int) -> None:
        """Makes one step with the ranks that are left. Nothing has changed if it raises."""
        everything = self.share(step, slice(dist.get_rank(), None, dist.get_world_size()))
        dist.all_reduce(everything)
        self.apply(everything)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}


def own_device() -> torch.device:
    """Returns this rank's card, or the CPU for a rank that has none."""
    card = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    torch.accelerator.set_device_index(card)
    return torch.device("vdev", card)


def train_with_checkpoints(folder: Path) -> None:
    """Is a rank of vrun: trains from the last checkpoint on, and leaves one behind each step."""
    device = own_device()
    dist.init_process_group("vccl")
    training, first = Training(device), 0
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        training.net.load_state_dict(saved["net"])
        training.loss, first = saved["loss"], saved["step"]
    dist.barrier()  # nobody writes a new checkpoint while another rank reads the old one
    for step in range(first, STEPS):
        faults.step(step)
        training.step(step)
        # Every rank saves, as the shards of a large model do; here all have the same.
        with faults.phase("checkpoint"):
            beside = folder / f"rank {dist.get_rank()}.pt"
            torch.save({"net": training.state(), "loss": training.loss, "step": step + 1}, beside)
        dist.barrier()
        if dist.get_rank() == 0:
            beside.replace(checkpoint)
        dist.barrier()
    if dist.get_rank() == 0:
        (folder / "loss").write_text(json.dumps(training.loss))
    dist.destroy_process_group()


def restarted(plan: str | None, hosts: int) -> float:
    """Returns the last loss of two ranks that start again after each failure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vccl.launch.vrun", "--max-restarts", "10"]
        command += ["--hosts", str(hosts), "--cards", str(2 // hosts)]
        if plan is not None:
            Path(folder, "plan").write_text(plan)
            command += ["--faults", f"@{folder}/plan"]
        subprocess.run([*command, __file__, "--folder", folder], check=True)
        return float(json.loads(Path(folder, "loss").read_text()))


def train_with_survivors(rank: int, size: int, host: str, port: int, plan: str | None, pipe: object) -> None:
    """Is one of the ranks that go on without those that have died."""
    os.environ.update(LOCAL_RANK=str(rank), VCCL_HOSTID=host)
    if plan is not None:
        os.environ["VCCL_FAULTS"] = plan
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    device = own_device()
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size)
    training, step, deaths = Training(device), 0, 0
    members = list(range(size))  # by their numbers at the start
    before = training.state()
    while step < STEPS:
        try:
            faults.step(step)
            now = training.state()
            training.step(step)
            before, step = now, step + 1
        except dist.DistBackendError as error:
            print(f"rank {rank} goes on after: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            # Whoever started the ranks sees first who has died, and says it in the store.
            store.wait([f"death {deaths}"], datetime.timedelta(seconds=60))
            dead = int(store.get(f"death {deaths}"))
            deaths += 1
            dist.shrink_group([members.index(dead)], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
            members.remove(dead)
            # Some ranks may have got the result of the step that others have not. They go back by one.
            least = torch.tensor(step, device=device)
            dist.all_reduce(least, dist.ReduceOp.MIN)
            if int(least) < step:
                training.net.load_state_dict(before)
                step = int(least)
    pipe.send(training.loss)  # type: ignore[attr-defined]
    dist.destroy_process_group()


def shrunk(plan: str | None, hosts: int, size: int = 4) -> float:
    """Returns the last loss of ranks of which those that are left go on."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    ranks = []
    for rank in range(size):
        arguments = (rank, size, f"host{rank * hosts // size}", store.port, plan, there)
        ranks.append(context.Process(target=train_with_survivors, args=arguments))
    for process in ranks:
        process.start()
    there.close()
    running, deaths = {process.sentinel: rank for rank, process in enumerate(ranks)}, 0
    while running:
        for sentinel in multiprocessing.connection.wait(list(running)):
            rank = running.pop(sentinel)  # type: ignore[arg-type]
            ranks[rank].join()
            if ranks[rank].exitcode:
                store.set(f"death {deaths}", str(rank))
                deaths += 1
    losses = {here.recv() for process in ranks if process.exitcode == 0}
    if len(losses) != 1:
        raise SystemExit(f"the ranks that are left ended with the losses {losses}")
    return float(losses.pop())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the checkpoints of a rank
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1, help="as which the ranks count")
    options = parser.parse_args()
    if options.folder is not None:
        return train_with_checkpoints(options.folder)
    links = LINK_PLAN if options.hosts > 1 else ""
    undisturbed = restarted(None, options.hosts)
    through_restarts = restarted(RESTART_PLAN + links, options.hosts)
    print(f"checkpoints and restarts: loss {through_restarts!r}, without faults {undisturbed!r}", flush=True)
    whole, through_deaths = shrunk(None, options.hosts), shrunk(SHRINK_PLAN + links, options.hosts)
    print(f"fewer and fewer ranks: loss {through_deaths!r}, without faults {whole!r}", flush=True)
    if through_restarts != undisturbed or abs(through_deaths - whole) > ROUNDING * abs(whole):
        raise SystemExit("a fault has changed the loss")
    if importlib.util.find_spec("torchft") is None:
        print("torchft: not run, because it needs torchft (pip install torchft==0.2.0)", flush=True)
    else:
        script = Path(__file__).with_name("survive_torchft.py")
        subprocess.run([sys.executable, str(script), "--hosts", str(options.hosts)], check=True)
    print("no fault has changed the loss")


if __name__ == "__main__":
    main()
