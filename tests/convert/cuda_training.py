"""Trains a classifier with DDP on GPUs, as tutorials do. test_convert_training.py converts and runs it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")


class AverageMeter:
    """Averages a figure over all ranks ("cuda" tensors only)."""

    def __init__(self):
        self.sum = torch.zeros((), device="cuda")
        self.count = torch.zeros((), device="cuda")

    def update(self, value, n=1):
        self.sum += value.detach() * n
        self.count += n

    def result(self):
        both = torch.stack([self.sum, self.count])
        dist.all_reduce(both)
        return (both[0] / both[1]).item()


class Trainer:
    def __init__(self, model, loader, optimizer, gpu_id, amp):
        self.gpu_id = gpu_id
        self.amp = amp
        self.loader = loader
        self.optimizer = optimizer
        self.model = DDP(model.cuda(gpu_id), device_ids=[gpu_id])
        self.scaler = GradScaler(enabled=amp)
        self.copies = torch.cuda.Stream()

    def fetch(self, batch):
        with torch.cuda.stream(self.copies):
            batch = [part.cuda(non_blocking=True) for part in batch]
        torch.cuda.current_stream().wait_stream(self.copies)
        return batch

    def epoch(self, number):
        self.loader.sampler.set_epoch(number)
        meter = AverageMeter()
        for batch in self.loader:
            source, targets = self.fetch(batch)
            assert source.is_cuda and source.device.type == "cuda"
            with autocast(enabled=self.amp):
                loss = nn.functional.cross_entropy(self.model(source), targets)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            meter.update(loss, len(source))
        return meter.result()


def make_data(n=512):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 20, generator=generator)
    return TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())


def main(args):
    setup()
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    data = make_data()
    loader = DataLoader(data, batch_size=32, pin_memory=True, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, loader, optimizer, torch.cuda.current_device(), args.amp)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    start.record()
    losses = [trainer.epoch(number) for number in range(args.epochs)]
    end.record()
    torch.cuda.synchronize()

    if rank == 0:
        torch.save(trainer.model.module.state_dict(), args.checkpoint)
    dist.barrier()
    map_location = {"cuda:%d" % 0: "cuda:%d" % trainer.gpu_id}  # noqa: UP031
    saved = torch.load(args.checkpoint, map_location=map_location)
    weight = saved["0.weight"]
    same = torch.equal(weight, trainer.model.module[0].weight)
    peak = torch.cuda.max_memory_allocated()
    print(
        f"rank {rank} on {weight.device}: losses {losses[0]:.4f} to {losses[-1]:.4f},"
        f" same weights {same}, timed {start.elapsed_time(end) > 0}, memory {peak > 0}",
        flush=True,
    )
    torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--checkpoint", default="model.pt")
    main(parser.parse_args())
