"""Runs a test as transformers' own suite does, on the device that the suite chooses. Argument: cpu."""

import json
import os
import sys
from pathlib import Path

import torch

if "cpu" not in sys.argv:
    Path("spec.py").write_text("from vccl.integrations.transformers_spec import *\n")
    os.environ["TRANSFORMERS_TEST_DEVICE_SPEC"] = "spec.py"

from transformers import GPT2Config, GPT2LMHeadModel, set_seed, testing_utils

device = testing_utils.torch_device
if device == "vdev":
    assert testing_utils.backend_device_count(device) == torch.accelerator.device_count()
    assert not hasattr(testing_utils.require_torch_multi_accelerator(lambda: None), "__unittest_skip__")
    testing_utils.backend_manual_seed(device, 1)
    testing_utils.backend_empty_cache(device)
set_seed(0)
config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
model = GPT2LMHeadModel(config).eval().to(device)
tokens = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(1)).to(device)
loss = model(tokens, labels=tokens).loss.item()
generated = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
assert generated.device.type == device
print("RESULT", json.dumps({"device": device, "losses": [loss, *generated.flatten().tolist()]}))
