"""Trains a character-level GPT with DDP on the sources of Python's standard library, and lets it write some.

    vrun --cards 2 examples/train_gpt.py
    torchrun --nproc-per-node 2 examples/train_gpt.py --backend gloo --device cpu     # the same without cards

Only two defaults are made for virtual cards: the names of the backend and of the device.
"""

import argparse
import itertools
import math
import os
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

# ---------------------------------------------------------------------------------------------------------
# The model


@dataclass(frozen=True)
class Config:
    characters: int  # size of the alphabet
    context: int = 128  # characters that a prediction can look back on
    layers: int = 4
    heads: int = 4
    width: int = 192


class CausalSelfAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width / heads)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.characters, config.width)
        self.position = nn.Embedding(config.context, config.width)
        blocks = [Block(config) for _ in range(config.layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.characters, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(self.initialize)
        # These layers add to the residual stream. Their sum should not grow with the depth.
        for block in blocks:
            for last in (block.attention.output, block.mlp[-1]):
                assert isinstance(last, nn.Linear)
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Returns logits (batch, length, alphabet) of the next character after each of (batch, length)."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.embedding(characters) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, characters: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Returns the (batch, length) characters continued by `count` more."""
        for _ in range(count):
            logits = self(characters[:, -self.config.context :])[:, -1]
            chosen = torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)
            characters = torch.cat([characters, chosen], dim=1)
        return characters


# ---------------------------------------------------------------------------------------------------------
# The data


class Text:
    """Holds the sources of the standard library as one row of characters."""

    def __init__(self, limit: int = 4_000_000) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:limit]
        text = text.encode("ascii", errors="replace").decode("ascii")
        self.alphabet = "".join(sorted(set(text)))
        self.characters = encode(text, self.alphabet)

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns random pieces (size, context), and the same one character later, which is predicted."""
        starts = torch.randint(len(self.characters) - context, (size, 1), generator=generator)
        pieces = self.characters[starts + torch.arange(context + 1)]
        return pieces[:, :-1], pieces[:, 1:]


def encode(text: str, alphabet: str) -> Tensor:
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text])


def decode(characters: Tensor, alphabet: str) -> str:
    return "".join(alphabet[index] for index in characters.tolist())


# ---------------------------------------------------------------------------------------------------------
# The training


def train(model: nn.Module, text: Text, context: int, device: torch.device, args: argparse.Namespace) -> None:
    """Trains as one rank, with batches of its own and gradients that are averaged over all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # This object is gone when the function returns, because DDP must not be the last that holds the group. It
    # frees the group while it holds Python's lock, for which threads of gloo may wait (docs/inside/torch.md).
    parallel = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    generator = torch.Generator().manual_seed(args.seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    progress = progress_bar(args, disable=rank != 0)
    begin, losses, next_look = time.perf_counter(), [], 1

    for step in itertools.count(1):
        inputs, targets = (part.to(device) for part in text.batch(args.batch_size, context, generator))
        loss = F.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        losses.append(loss.detach())  # not .item(), which would wait for the device at every step
        elapsed = time.perf_counter() - begin
        progress.update(1 if args.steps else min(elapsed, args.seconds) - progress.n)

        if step < next_look:
            continue
        mean_loss, elapsed = agreed_figures(torch.stack(losses).mean(), elapsed)
        left = steps_left(step, elapsed, args)
        next_look = step + steps_to_next_look(step, left, args.report_every)
        if left == 0 or step % args.report_every == 0:
            losses.clear()
            speed = step * args.batch_size * context * ranks / elapsed
            progress.set_postfix_str(f"loss {mean_loss:.3f}, {speed:,.0f} tokens/s")
            if rank == 0:
                progress.write(f"step {step:5d}  loss {mean_loss:.4f}  {speed:9,.0f} tokens/s")
        if left == 0:
            break
    progress.close()


def progress_bar(args: argparse.Namespace, disable: bool) -> tqdm:
    """Returns a bar that counts steps if their number was given, and seconds otherwise."""
    if args.steps:
        return tqdm(total=args.steps, unit="step", disable=disable)
    layout = "{percentage:3.0f}%|{bar}| {n:.0f} of {total:g} s{postfix}"
    return tqdm(total=args.seconds, bar_format=layout, disable=disable)


def agreed_figures(loss: Tensor, elapsed: float) -> list[float]:
    """Returns the mean loss of all ranks and the time of rank 0, which are the same on every rank."""
    ranks = dist.get_world_size()
    time_of_rank_0 = elapsed if dist.get_rank() == 0 else 0.0
    figures = torch.stack([loss / ranks, torch.tensor(time_of_rank_0, device=loss.device)])
    dist.all_reduce(figures)
    return figures.tolist()


def steps_left(step: int, elapsed: float, args: argparse.Namespace) -> int:
    """Returns how many more steps there will be, at the pace of the `step` steps in `elapsed` seconds.

    All ranks have the same `elapsed`, so they end at the same step. A rank that stopped alone would leave the
    others waiting for it.
    """
    if args.steps:
        return args.steps - step
    return max(0, int((args.seconds - elapsed) / (elapsed / step)))


def steps_to_next_look(step: int, left: int, report_every: int) -> int:
    """Returns after how many steps the ranks compare figures again, which makes the host wait for the device.

    They compare at the next report at the latest. Half of the steps that are left is early enough to notice
    that the pace has changed.
    """
    return max(1, min((left + 1) // 2, report_every - step % report_every))


def sample(checkpoint: Path, device: torch.device, prompt: str, count: int) -> str:
    """Returns what a model writes that is made from the checkpoint alone."""
    saved = torch.load(checkpoint, map_location=device)
    model = GPT(Config(**saved["config"])).to(device)
    model.load_state_dict(saved["model"])
    characters = encode(prompt, saved["alphabet"]).unsqueeze(0).to(device)
    return decode(model.generate(characters, count)[0], saved["alphabet"])


def main() -> None:
    args = parse_arguments()
    device = torch.device(args.device)
    if device.type != "cpu":
        device = torch.device(args.device, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(args.backend)
    leads = dist.get_rank() == 0

    torch.manual_seed(args.seed)
    text = Text()
    config = Config(len(text.alphabet))
    model = GPT(config).to(device)
    if leads:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size:,} parameters, {len(text.characters):,} characters of text,", end=" ")
        print(f"{dist.get_world_size()} ranks on {device.type} over {args.backend}", flush=True)

    train(model, text, config.context, device, args)
    dist.destroy_process_group()

    if leads:
        args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"model": model.state_dict(), "config": asdict(config), "alphabet": text.alphabet},
            args.checkpoint,
        )
        print(f"\n{args.checkpoint}, asked to go on from {args.prompt!r}:\n")
        print(sample(args.checkpoint, device, args.prompt, args.sample), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--backend", default="vccl")
    add("--device", default="vdev", help="vdev, cpu, cuda, ...; rank i of a host takes card i")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=60, help="of training (default: 60)")
    length.add_argument("--steps", type=int, help="of training, however long they take")
    add("--batch-size", type=int, default=8, help="pieces of text a step and rank (default: 8)")
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=1)
    add("--report-every", type=int, default=20, metavar="STEPS")
    add("--checkpoint", type=Path, default=Path("checkpoints/gpt.pt"))
    add("--prompt", default="def ")
    add("--sample", type=int, default=400, metavar="CHARACTERS", help="how much to write in the end")
    args = parser.parse_args()
    if args.seconds <= 0 or (args.steps is not None and args.steps < 1):
        parser.error("--seconds and --steps take a number above 0")
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with vrun or torchrun, as in: vrun --cards 2 examples/train_gpt.py")
    return args


if __name__ == "__main__":
    main()
