"""Every operator of PyTorch's own list, forward and backward: a card gives the bits that the CPU gives."""

import itertools
import os
from collections.abc import Callable

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from vccl import _C

SAMPLES = 3

# Random: vdev has a generator of its own; test_ops.py looks at these.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention",  # some samples have dropout; test_nn.py compares it without
}
# The result is memory that nobody has written to.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
# With CSR tensors. Of sparse layouts, vdev has COO only.
SPARSE = {"sparse.mm", "sparse.sampled_addmm"}
# Not for the CPU either.
CUDA_ONLY = {
    "jiterator_2inputs_2outputs",
    "jiterator_4inputs_with_extra_args",
    "jiterator_binary",
    "jiterator_binary_return_by_ref",
    "jiterator_unary",
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
}
SKIPPED = RANDOM | UNINITIALISED | SPARSE | CUDA_ONLY
# Gradients are only defined for results up to a phase, which the gradient used here is not.
FORWARD_ONLY = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd"}
# Makes tensors out of numbers: the device is an argument.
FACTORIES = {
    "arange",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}
# torch wants the sections, a tensor, on the CPU for every device.
SECTIONS_ON_CPU = {"tensor_split"}


def dtypes_of(op) -> list[torch.dtype]:
    """The first that it takes of the usual ones, and complex: a conjugation may be a mere bit."""
    supported = op.supported_dtypes("cpu")
    wanted = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
    first = next((dtype for dtype in wanted if dtype in supported), min(supported, key=str))
    return [first, torch.complex64] if torch.complex64 in supported - {first} else [first]


def on_card(value: object) -> object:
    """The same tensor on a card: same strides, same offset, same holes between its elements."""
    if isinstance(value, torch.Tensor):
        numbers = value.untyped_storage().nbytes() // value.element_size()
        flat = torch.as_strided(value.detach(), (numbers,), (1,), 0).to("vdev")
        moved = flat.as_strided(value.shape, value.stride(), value.storage_offset())
        return moved.requires_grad_(value.requires_grad)
    if value == "cpu" or value == torch.device("cpu"):
        return torch.device("vdev:0")
    return value


def same(on_cpu: object, on_vdev: object) -> None:
    expected, layout = pytree.tree_flatten(on_cpu)
    actual, other_layout = pytree.tree_flatten(on_vdev)
    assert layout == other_layout
    for left, right in zip(expected, actual, strict=True):
        if not isinstance(left, torch.Tensor):
            assert left == right or (left != left and right != right)
            continue
        assert right.device == torch.device("vdev:0")
        assert right.stride() == left.stride()
        torch.testing.assert_close(right.cpu(), left, rtol=0, atol=0, equal_nan=True)


def differentiable(tree: object) -> list[torch.Tensor]:
    return [
        leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]


def run(op: Callable, args: tuple, kwargs: dict, backward: bool) -> tuple[object, object]:
    """The operator's result, and its inputs' gradients for a fixed gradient of every result."""
    inputs = differentiable((args, kwargs))
    result = op(*args, **kwargs)
    results = differentiable(result)
    if not backward or not inputs or not results:
        return result, None
    generator = torch.Generator().manual_seed(7)
    given = [torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) for x in results]
    gradients = torch.autograd.grad(results, inputs, given, allow_unused=True)
    return pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result), gradients


def is_async() -> bool:
    return os.environ.get("VDEV_LAUNCH", "async") == "async"


def identity(op) -> str:
    return f"{op.name}-{op.variant_test_name}" if op.variant_test_name else op.name


# Where a card would take another way through torch than the CPU does, and the user would be told of it.
@pytest.mark.filterwarnings("error:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, dtype, id=f"{identity(op)}-{str(dtype).removeprefix('torch.')}")
        for op in op_db
        if op.name not in SKIPPED and op.supported_dtypes("cpu")
        for dtype in dtypes_of(op)
    ],
)
def test_same_bits_as_cpu(op, dtype):
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    tested = 0
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), SAMPLES):
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        if op.name in SECTIONS_ON_CPU:
            moved_args, moved_kwargs = (on_card(args[0]), *args[1:]), kwargs
        else:
            moved_args, moved_kwargs = pytree.tree_map(on_card, (args, kwargs))
        if op.name in FACTORIES or op.name.startswith("signal.windows"):
            moved_kwargs["device"] = "vdev:0"
        gradients = backward and op.name not in FORWARD_ONLY
        expected = run(op.op, args, kwargs, gradients)
        same(expected, run(op.op, moved_args, moved_kwargs, gradients))
        # From the second equal call on, operators are tasks of the stream.
        same(expected, run(op.op, moved_args, moved_kwargs, gradients))
        if is_async():
            # Behind a busy stream the first call is a task, too.
            _C._forget_calls()
            torch.vdev._sleep(100_000)
            same(expected, run(op.op, moved_args, moved_kwargs, gradients))
        tested += 1
    assert tested > 0
