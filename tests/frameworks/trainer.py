"""Trains a tiny GPT-2 with transformers' Trainer, and prints the losses. Arguments: bf16, fsdp, cpu, vdev."""

import json
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(
    n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
generator = torch.Generator().manual_seed(1)
tokens = torch.randint(0, 64, (32, 16), generator=generator)
options: dict[str, object] = {}
if "vdev" in sys.argv:
    from vccl.integrations.accelerate import use_cards

    use_cards()
    options["accelerator_config"] = {"use_configured_state": True}
if "fsdp" in sys.argv:
    options["fsdp"] = "full_shard auto_wrap"
    options["fsdp_config"] = {"transformer_layer_cls_to_wrap": ["GPT2Block"]}
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=4,
        bf16="bf16" in sys.argv,
        use_cpu="cpu" in sys.argv,
        logging_steps=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    )
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if arguments.process_index == 0:
    print("RESULT", json.dumps({"device": arguments.device.type, "losses": losses}))
