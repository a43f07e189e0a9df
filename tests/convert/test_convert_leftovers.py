"""What is left is reported with its line and with what to do; what has nothing to do with it is not."""

import pytest

from vccl.convert.converter import convert_text
from vccl.convert.plan import Leftover

# A piece, the expression that is reported of it, and a part of the advice.
LEFT = {
    "nvtx": ("torch.cuda.nvtx.range_push('a')", "torch.cuda.nvtx.range_push", "record_function"),
    "nvtx by import": ("from torch.cuda import nvtx\nnvtx.range_pop()", "nvtx.range_pop", "record_function"),
    "graph": ("g = torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph", "torch.accelerator.Graph"),
    "custom_fwd": ("@torch.cuda.amp.custom_fwd\ndef f(): pass", "torch.cuda.amp.custom_fwd", "device_type"),
    "snapshot": ("torch.cuda.memory._snapshot()", "torch.cuda.memory._snapshot", "memory_stats"),
    "unknown": ("torch.cuda.jiterator", "torch.cuda.jiterator", "CUDA alone"),
    "capability": (
        "torch.cuda.get_device_capability()[0] >= 8",
        "torch.cuda.get_device_capability",
        "is_bf16_supported",
    ),
    "the module itself": ("backend = torch.cuda", "torch.cuda", "CUDA alone"),
    "tensor types": ("torch.cuda.FloatTensor(2)", "torch.cuda.FloatTensor", "dtype=..."),
    "cudnn": ("import torch.backends.cudnn as cudnn\ncudnn.benchmark = True", "cudnn.benchmark", "can stay"),
    "tf32": (
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.allow_tf32",
        "can stay",
    ),
    "triton": ("import triton.language as tl", "import triton.language as tl", "Triton"),
    "pynvml": ("from pynvml import nvmlInit", "from pynvml import nvmlInit", "NVIDIA"),
    "numba": ("from numba import cuda", "from numba import cuda", "CUDA kernels"),
    "visible devices": (
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "'CUDA_VISIBLE_DEVICES'",
        "VDEV_VISIBLE_DEVICES",
    ),
    "a variable of NCCL": ("os.environ['NCCL_DEBUG'] = 'INFO'", "'NCCL_DEBUG'", "can stay"),
    "activities": (
        "from torch.profiler import ProfilerActivity\nprofile([ProfilerActivity.CUDA])",
        "ProfilerActivity.CUDA",
        "leave `activities` out",
    ),
    "two backends": (
        "torch.distributed.init_process_group('cpu:gloo,cuda:nccl')",
        "'cpu:gloo,cuda:nccl'",
        "leave the backend out",
    ),
    "a comparison of backends": ("if backend == 'nccl': pass", "'nccl'", "get_default_backend_for_device"),
    "another mode": ("if mode == 'cuda': pass", "'cuda'", "current_accelerator"),
    "the start of a longer name": ("name = f'cuda:{rank}/{step}'", "f'cuda:{rank}/{step}'", "names a device"),
    "stars": ("x.cuda(*args)", "x.cuda(*args)", "which arguments"),
    "a call that may give None": ("x.cuda(config.get('gpu'))", "x.cuda(config.get('gpu'))", "None"),
    "an own method": ("class A:\n    def cuda(self): pass\nA().cuda()", "A().cuda()", "of its own"),
    "a function of a module": ("import helpers\nhelpers.cuda()", "helpers.cuda()", "function of a module"),
    "settings": ("if args.is_cuda: pass", "args.is_cuda", "may not be a tensor's"),
    "a handle": ("s = torch.cuda.Stream().cuda_stream", "torch.cuda.Stream", "handle"),
    "external events": ("torch.cuda.Event(external=True)", "torch.cuda.Event(external=True)", "`external`"),
    "two meanings": (
        "try:\n    from torch.cuda import Event\nexcept ImportError:\n    Event = my\nEvent()",
        "Event",
        "more than once",
    ),
    "another torch": ("def f(torch):\n    x.cuda()", "x.cuda()", "means something else"),
    "star imports": ("from torch.cuda import *", "from torch.cuda import *", "one by one"),
    "a name in a string": (
        "patch('torch.cuda.is_available')",
        "'torch.cuda.is_available'",
        "takes its place",
    ),
    "a tensor type in a string": (
        "torch.set_default_tensor_type('torch.cuda.FloatTensor')",
        "'torch.cuda.FloatTensor'",
        "set_default_device",
    ),
    "not called": ("map(torch.Tensor.cuda, xs)", "torch.Tensor.cuda", ".to(device)"),
    "is_nccl_available": (
        "from torch.distributed import is_nccl_available as ok\nok()",
        "ok",
        "is_backend_available",
    ),
    "a comment inside": (
        "(torch.cuda  # why\n    .synchronize)()",
        "torch.cuda # why .synchronize",
        "torch.accelerator.synchronize",
    ),
}


@pytest.mark.parametrize(("text", "expression", "advice"), LEFT.values(), ids=LEFT)
def test_what_is_left_is_reported_once(text, expression, advice):
    text = f"import torch, os\n{text}\n"
    conversion = convert_text(text)
    assert conversion.text == text
    (leftover,) = conversion.leftovers
    assert leftover.expression == expression
    assert advice in leftover.advice
    first_word = expression.split()[0]
    assert first_word in text.splitlines()[leftover.line - 1]


@pytest.mark.parametrize(
    "text",
    [
        "'''cuda'''",
        "print('runs on cuda', \"it's cuda:0 or nccl\")",
        "if args.cuda and args.no_cuda: pass",
        "cuda = args.cuda\nuse_cuda = cuda",
        "# torch.cuda.nvtx",
        "def cuda(): pass",
        "from torch.nn import cuda_like",
    ],
)
def test_what_is_unrelated_is_not_reported(text):
    conversion = convert_text(f"import torch\n{text}\n")
    assert conversion.text == f"import torch\n{text}\n"
    assert conversion.leftovers == []


def test_a_guard_is_left_with_what_it_guards():
    text = "import torch\nok = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8\n"
    assert [leftover.expression for leftover in convert_text(text).leftovers] == [
        "torch.cuda.get_device_capability",
        "torch.cuda.is_available",
    ]


def test_the_report_is_in_the_order_of_the_lines():
    text = "import torch\ntorch.cuda.nvtx.mark('a')\nx.cuda()\ntorch.cuda.init\ntorch.cuda.jiterator()\n"
    lines = [leftover.line for leftover in convert_text(text).leftovers]
    assert lines == [2, 5]
    assert all(isinstance(leftover, Leftover) for leftover in convert_text(text).leftovers)
