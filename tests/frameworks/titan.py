"""Trains torchtitan's debug model on two devices. Arguments: fsdp, tp or pp; cpu.

Each run starts from a seed checkpoint, validates, saves a checkpoint, and is resumed from that by a second
job. torchtitan.train runs as it is in the ranks. torchtitan knows no CPU, so there they run it through
titan_on_cpu.py, and ``tp`` and ``pp`` shard the data instead, which has the same losses.
"""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

PARALLELISM = {
    "fsdp": [],
    # gloo cannot scale gradients as FSDP2 asks it to.
    "ddp": ["--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1"],
    "tp": ["--parallelism.tensor_parallel_degree=2"],
    "pp": ["--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=1F1B"],
}
# Four sequences in each step, on two ranks with two each, or on both together.
BATCH = {"fsdp": 2, "tp": 4, "pp": 4}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def make_data() -> None:
    """Writes a tokenizer of letters, and the dataset c4_test where torchtitan looks for it."""
    tokens = ["[UNK]", "<s>", "</s>", *"abcdefgh"]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    Path("tokenizer").mkdir()
    tokenizer.save("tokenizer/tokenizer.json")
    Path("tokenizer/tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    folder = Path("tests/assets/c4_test")
    folder.mkdir(parents=True)
    letters = random.Random(0)
    with (folder / "data.json").open("w") as file:
        for _ in range(400):
            file.write(json.dumps({"text": "".join(letters.choices("abcdefgh", k=100))}) + "\n")


def train(ranks: int, *options: str) -> list[float]:
    """Returns the losses that the last rank of a job of torchtitan printed, and notes its device."""
    script = [str(Path(__file__).with_name("titan_on_cpu.py"))] if on_cpu else ["-m", "torchtitan.train"]
    command = [*TORCHRUN, f"--nproc-per-node={ranks}", f"--local-ranks-filter={ranks - 1}", *script]
    job = subprocess.run([*command, *SETTINGS, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = re.sub(r"\x1b\[[0-9;]*m", "", job.stdout.decode())
    if job.returncode != 0:
        raise SystemExit(text)
    devices.update(re.findall(r"(\w+) memory usage for model", text))
    return [float(number) for number in re.findall(r"loss: +(-?[0-9.]+)", text)]


parallelism, on_cpu = sys.argv[1], "cpu" in sys.argv
if on_cpu and parallelism == "fsdp":
    PARALLELISM["fsdp"] = PARALLELISM["ddp"]
devices: set[str] = set()
SETTINGS = [
    "--model.name=llama3",
    "--model.flavor=debugmodel",
    "--model.hf_assets_path=tokenizer",
    "--optimizer.lr=1e-3",
    "--lr_scheduler.decay_ratio=0",
    f"--training.local_batch_size={BATCH[parallelism]}",
    "--training.seq_len=64",
    "--training.dataset=c4_test",
    "--training.mixed_precision_param=float32",
    "--metrics.log_freq=1",
    "--checkpoint.enable",
    "--debug.seed=0",
]
TRAINING = [
    "--checkpoint.no-last-save-model-only",
    "--validation.enable",
    "--validation.dataset=c4_test",
    f"--validation.local_batch_size={BATCH[parallelism]}",
    "--validation.seq_len=64",
    "--validation.freq=2",
    "--validation.steps=2",
]
make_data()
train(1, "--checkpoint.create_seed_checkpoint")
losses = train(2, *PARALLELISM[parallelism], *TRAINING, "--training.steps=4")
losses += train(2, *PARALLELISM[parallelism], *TRAINING, "--training.steps=6")
print("RESULT", json.dumps({"device": "/".join(devices).lower(), "losses": losses}))
