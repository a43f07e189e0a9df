"""Trains a character-level GPT with DDP on Python's own standard library, and lets it write some.

    vrun --cards 2 examples/train_gpt.py
    torchrun --nproc-per-node 2 examples/train_gpt.py --backend gloo --device cpu     # the same without cards

Nothing here is written for virtual cards, but for two defaults: a backend and a device are names.
"""

import argparse
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
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.characters, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(self.initialize)
        # What the residual stream sums up should not grow with the depth.
        for block in self.blocks:
            for last in (block.attention.output, block.mlp[-1]):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) character numbers -> (batch, length, alphabet) logits of the next one."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.embedding(characters) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, characters: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Continues (batch, length) character numbers by `count` more."""
        for _ in range(count):
            logits = self(characters[:, -self.config.context :])[:, -1]
            chosen = torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)
            characters = torch.cat([characters, chosen], dim=1)
        return characters


# ---------------------------------------------------------------------------------------------------------
# The data


class Text:
    """The standard library's sources as one row of characters."""

    def __init__(self, limit: int = 4_000_000) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:limit]
        text = text.encode("ascii", errors="replace").decode("ascii")
        self.alphabet = "".join(sorted(set(text)))
        self.characters = encode(text, self.alphabet)

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random pieces (size, context), and the same moved on by one character: what is to be predicted."""
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
    """One rank's part: batches of its own, gradients averaged over all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Gone when this function returns: DDP must not be the last that holds the group. It frees the group with
    # Python's lock held, for which threads of gloo may wait (docs/torch.md).
    parallel = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    generator = torch.Generator().manual_seed(args.seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    progress = tqdm(total=args.steps, unit="step", disable=rank != 0)
    begin, losses = time.perf_counter(), []

    for step in range(1, args.steps + 1):
        inputs, targets = (part.to(device) for part in text.batch(args.batch_size, context, generator))
        loss = F.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        losses.append(loss.detach())  # not .item(), which would wait for the device at every step
        progress.update()

        if step % args.report_every == 0 or step == args.steps:
            elapsed = time.perf_counter() - begin
            mean_loss, mean_elapsed = averaged_over_ranks(torch.stack(losses).mean(), elapsed)
            losses.clear()
            speed = step * args.batch_size * context * ranks / elapsed
            progress.set_postfix_str(f"loss {mean_loss:.3f}, {speed:,.0f} tokens/s")
            if rank == 0:
                progress.write(f"step {step:5d}  loss {mean_loss:.4f}  {speed:9,.0f} tokens/s")
            # All ranks see the same figure, and decide alike: one that stopped alone would leave the
            # others waiting for it.
            if mean_elapsed > args.seconds:
                break
    progress.close()


def averaged_over_ranks(loss: Tensor, elapsed: float) -> list[float]:
    figures = torch.stack([loss, torch.tensor(elapsed, device=loss.device)]) / dist.get_world_size()
    dist.all_reduce(figures)
    return figures.tolist()


def sample(checkpoint: Path, device: torch.device, prompt: str, count: int) -> str:
    """What a model writes that knows nothing but the checkpoint."""
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
    add("--steps", type=int, default=2000, help="at most so many (default: 2000)")
    add("--seconds", type=float, default=60, help="and no longer than this (default: 60)")
    add("--batch-size", type=int, default=8, help="pieces of text a step and rank (default: 8)")
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=1)
    add("--report-every", type=int, default=20, metavar="STEPS")
    add("--checkpoint", type=Path, default=Path("checkpoints/gpt.pt"))
    add("--prompt", default="def ")
    add("--sample", type=int, default=400, metavar="CHARACTERS", help="how much to write in the end")
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with vrun or torchrun, as in: vrun --cards 2 examples/train_gpt.py")
    return args


if __name__ == "__main__":
    main()
