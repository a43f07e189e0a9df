"""Every name of torch.cuda, and every function below it, is provided or refused. A new torch adds names."""

import re
import sys
from pathlib import Path

import pytest
import torch
from probes import names

FILE = "names_of_cuda.py"
TORCH = Path(torch.__file__).parent
# Functions of torch._C that belong to CUDA, wherever torch mentions them.
CUDAS = re.compile(r"_(cuda|Cuda|CUDA|nccl|cudnn|gds|nvtx)\w*|_(broadcast|scatter|gather)(_\w+)?")
# torch asks for these first, and does without them.
LEFT_OUT = {
    "_CUDAGreenContext": "torch.cuda.green_contexts looks for it at import; GreenContext.create refuses",
    "_cudnn": "cards have no cuDNN, which torch.backends.cudnn.is_available() tells",
}


def mentioned() -> set[str]:
    """Returns the names of torch._C about CUDA that torch's Python files use.

    torch/testing is left out: it holds torch's own tests.
    """
    found: set[str] = set()
    for file in TORCH.rglob("*.py"):
        if "testing" in file.relative_to(TORCH).parts:
            continue
        text = file.read_text(errors="replace")
        found.update(re.findall(r"\b_C\.(\w+)", text))
        found.update(re.findall(r"attr\(\s*(?:torch\.)?_C,\s*\"(\w+)\"", text))
        for imported in re.findall(r"from torch\._C import (\([^)]*\)|[^\n]*)", text):
            found.update(re.findall(r"\w+", re.sub(r"#.*", "", imported)))
    return {name for name in found if CUDAS.fullmatch(name)}


def test_the_scan_finds_every_way_to_mention_a_name():
    assert {"_cuda_setDevice", "_CudaDeviceProperties", "_cuda_CUDAAllocator_AllocatorState"} <= mentioned()


def test_every_function_below_torch_cuda_is_there(run, posed_environment):
    wanted = sorted(mentioned() - LEFT_OUT.keys())
    code = f"import torch, torch.cuda.gds\nprint([n for n in {wanted} if not hasattr(torch._C, n)])"
    assert run([sys.executable, "-c", code], env=posed_environment).strip().endswith("[]")


@pytest.mark.parametrize("name", names(FILE))
def test_every_public_name(posed, name):
    posed(FILE, name)
