"""What the results of a task look like is known before it runs. Of some operators it cannot be known."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from test_opinfo import (
    CUDA_ONLY,
    FACTORIES,
    RANDOM,
    SECTIONS_ON_CPU,
    SPARSE,
    UNINITIALISED,
    dtypes_of,
    identity,
    on_card,
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from vccl import _C, _torch_version

# torch has no shape function for these operators. Each makes its results in the sizes of arguments alone.
SIZED_BY_ARGUMENTS = {
    "_add_relu": "the broadcast sizes",
    "_aminmax": "no dimension, or that of the reduction",
    "_compute_linear_combination": "rows of coefficients, and a row's sizes",
    "_ctc_loss_backward": "those of log_probs",
    "_dirichlet_grad": "those of x",
    "_fake_quantize_learnable_per_channel_affine": "those of self",
    "_fake_quantize_learnable_per_channel_affine_backward": "those of self, scale and zero_point",
    "_fake_quantize_learnable_per_tensor_affine": "those of self",
    "_fake_quantize_learnable_per_tensor_affine_backward": "those of self, scale and zero_point",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": "those of self",
    "_foobar": "those of self; of torch's own tests",
    "_logcumsumexp": "those of self",
    "_masked_softmax": "those of self",
    "_masked_softmax_backward": "those of grad_output",
    "_nested_compute_contiguous_strides_offsets": "those of nested_size",
    "_sample_dirichlet": "those of self",
    "_slow_conv2d_backward": "those of self, weight and bias",
    "_slow_conv2d_forward": "a convolution's",
    "_standard_gamma_grad": "those of self",
    "_test_functorch_fallback": "those of self; of torch's own tests",
    "_test_optional_filled_intlist": "those of values; of torch's own tests",
    "_test_optional_floatlist": "those of values; of torch's own tests",
    "_test_optional_intlist": "those of values; of torch's own tests",
    "_transform_bias_rescale_qkv": "those of qkv, and the number of heads",
    "batch_norm_backward_elemt": "those of input",
    "batch_norm_backward_reduce": "the number of channels",
    "batch_norm_elemt": "those of input",
    "batch_norm_gather_stats": "the number of channels",
    "batch_norm_gather_stats_with_counts": "the number of channels",
    "batch_norm_stats": "the number of channels",
    "batch_norm_update_stats": "the number of channels",
    "binomial": "those of count",
    "fake_quantize_per_channel_affine_cachemask": "those of self",
    "fake_quantize_per_tensor_affine_cachemask": "those of self",
    "fractional_max_pool3d_backward": "those of self",
    "geqrf": "those of self",
    "glu_backward_jvp": "those of x",
    "glu_jvp": "those of glu",
    "histogram": "the number of bins",
    "multi_margin_loss_backward": "those of self",
    "multilabel_margin_loss_backward": "those of self",
    "slow_conv3d_forward": "a convolution's",
    "slow_conv_dilated2d": "a convolution's",
    "slow_conv_dilated3d": "a convolution's",
    "slow_conv_transpose3d": "a convolution's",
}
if _torch_version.is_one_of("<2.13"):
    SIZED_BY_ARGUMENTS |= {
        "_standard_gamma": "those of self",
        "_transformer_encoder_layer_fwd": "those of src",
    }
# Nor for these. Their results or arguments are sparse, quantized, nested or on the CPU, so they are no tasks.
NEVER_TASKS = {
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "_make_per_channel_quantized_tensor",
    "_make_per_tensor_quantized_tensor",
    "_nested_from_padded",
    "_nested_tensor_from_mask",
    "_nested_view_from_buffer",
    "_spdiags",
    "_to_sparse",
    "_to_sparse_bsc",
    "_to_sparse_bsr",
    "_to_sparse_csc",
    "_to_sparse_csr",
    "dequantize",
    "from_file",
    "quantize_per_channel",
    "quantize_per_tensor_dynamic",
    "quantized_gru",
    "quantized_lstm",
    "to_mkldnn",
}
SHAPE_KEYS = ("Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def why_at_call(full: str) -> str | None:
    name, _, overload = full.partition(".")
    return _C._why_at_call(name, "" if overload == "default" else overload)


def has_results_of_its_own(schema) -> bool:
    return any(
        "Tensor" in str(result.type) and not (result.alias_info and result.alias_info.is_write)
        for result in schema.returns
    )


def unshaped() -> set[str]:
    """The operators that may be tasks and of which torch itself cannot tell the results' shapes."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = set()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        if not name.startswith("aten::") or why_at_call(full):
            continue
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU"):
            continue
        if has(full, "CompositeImplicitAutograd") or any(has(full, key) for key in SHAPE_KEYS):
            continue
        short = name.removeprefix("aten::")
        if has_results_of_its_own(getattr(getattr(torch.ops.aten, short), overload or "default")._schema):
            found.add(short)
    return found


def test_torch_can_shape_what_may_be_a_task():
    assert unshaped() == set(SIZED_BY_ARGUMENTS) | NEVER_TASKS


class Calls(TorchDispatchMode):
    """Keeps the first calls of each of torch's operators, with copies of their arguments."""

    def __init__(self, most: int):
        super().__init__()
        self.most, self.calls = most, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        seen = self.calls.setdefault(function, [])
        if len(seen) < self.most and function.namespace == "aten":
            copy = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), (args, kwargs))
            seen.append(copy)
        return function(*args, **kwargs)


def samples(op, dtype, count: int) -> Iterator[tuple[tuple, dict]]:
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), count):
        yield (sample.input, *sample.args), dict(sample.kwargs)


def other_elements(value: object) -> object:
    """A tensor of the same type, sizes and strides with other elements, which are as good as indices."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.numel() < 2:
        return value
    numbers = value.detach()
    other = numbers.clone(memory_format=torch.preserve_format)
    if other.stride() != numbers.stride() or other.is_conj() or other.is_neg() or other.is_quantized:
        return value
    if numbers.dtype == torch.bool:
        return other.logical_not_() if numbers.all() or not numbers.any() else other.fill_(True)
    if numbers.dtype.itemsize == 1:  # float8 can neither be flipped nor compared
        numbers, other = (
            numbers.view(torch.uint8),
            other.view(torch.uint8),
        )
        other.copy_(numbers.flatten().flip(0).view(numbers.shape))
        return other.view(value.dtype)
    flipped = numbers.flatten().flip(0).view(numbers.shape)
    if torch.equal(flipped, numbers):
        flipped = numbers.flatten()[:1].expand(numbers.numel()).view(numbers.shape)
    other.copy_(flipped)
    return other


def shapes(tree: object) -> list[object]:
    return [tuple(x.shape) if isinstance(x, torch.Tensor) else type(x) for x in pytree.tree_leaves(tree)]


def depends_on_elements(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether two runs on the CPU, or torch's own shape function, say so."""
    results = []
    for change in (lambda x: x, other_elements, lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x):
        try:
            copy = pytree.tree_map_only(
                torch.Tensor, lambda x: x.clone(), pytree.tree_map(change, (args, kwargs))
            )
            results.append(shapes(function(*copy[0], **copy[1])))
        except (RuntimeError, IndexError, ValueError, torch.linalg.LinAlgError):
            continue  # such elements are an error
    if any(result != results[0] for result in results):
        return True
    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True))
    try:
        fakes = pytree.tree_map_only(
            torch.Tensor, lambda x: mode.from_tensor(x, static_shapes=True), (args, kwargs)
        )
        with mode:
            result = function(*fakes[0], **fakes[1])
    except (DynamicOutputShapeException, DataDependentOutputException):
        return True
    except Exception:
        return False  # torch has no shape function; see test_torch_can_shape_what_may_be_a_task
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return any(isinstance(size, torch.SymInt) for x in leaves for size in x.shape)


# Their indices decide; a call with Booleans among them is never a task.
LOOKED_AT_IN_EACH_CALL = {
    "aten::index.Tensor",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
}


def missed(calls: dict) -> set[str]:
    """The operators of the calls that depend on elements, and may be tasks nevertheless."""
    found = set()
    for function, seen in calls.items():
        full = str(function.name()).removesuffix(".default")
        if full in LOOKED_AT_IN_EACH_CALL or why_at_call(full):
            continue
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU"):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
            continue
        torch.manual_seed(0)
        if any(depends_on_elements(function, *call) for call in seen):
            found.add(full)
    return found


def run_on_card(op, args: tuple, kwargs: dict) -> object:
    if op.name in SECTIONS_ON_CPU:
        return op.op(on_card(args[0]), *args[1:], **kwargs)
    args, kwargs = pytree.tree_map(on_card, (args, kwargs))
    if op.name in FACTORIES or op.name.startswith("signal.windows"):
        kwargs["device"] = "vdev:0"
    return op.op(*args, **kwargs)


def same(on_cpu: object, on_vdev: object) -> None:
    for left, right in zip(pytree.tree_leaves(on_cpu), pytree.tree_leaves(on_vdev), strict=True):
        if isinstance(left, torch.Tensor) and left.layout == torch.strided:
            torch.testing.assert_close(right.cpu(), left, equal_nan=True)


# Marks of operators.
MARKS = {
    "linalg.ldl_solve": [
        pytest.mark.torch(">=2.13", "the CPU's kernel checks no pivots, and writes beyond its memory")
    ]
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, id=identity(op), marks=MARKS.get(op.name, []))
        for op in op_db
        if op.name not in CUDA_ONLY | SPARSE and op.supported_dtypes("cpu")
    ],
)
def test_other_elements(op):
    """Equal calls with other elements give the CPU's results, and what they call is known for what it is."""
    dtype = dtypes_of(op)[0]
    torch.manual_seed(0)
    for args, kwargs in samples(op, dtype, 2):
        mode = Calls(2)
        with mode:
            expected = op.op(*args, **kwargs)
        assert not missed(mode.calls)
        if op.name in RANDOM | UNINITIALISED:
            continue
        for _ in range(2):
            same(expected, run_on_card(op, args, kwargs))
        others = pytree.tree_map(other_elements, (args, kwargs))
        try:
            expected = op.op(*others[0], **others[1])
        except (RuntimeError, IndexError, ValueError):
            continue  # such elements are an error
        same(expected, run_on_card(op, *others))


def test_the_test_sees_what_depends_on_elements():
    aten = torch.ops.aten
    x, offsets = torch.ones(2, 4, 3), torch.tensor([0, 1, 3])
    assert depends_on_elements(aten.nonzero.default, (torch.tensor([1, 0, 1]),), {})
    assert depends_on_elements(aten._padded_dense_to_jagged_forward.default, (x, [offsets]), {})
    assert not depends_on_elements(aten.cumsum.default, (x, 0), {})


@pytest.mark.asynchronous
def test_a_jagged_result_has_its_own_size():
    """Equal calls have results of different sizes, unless the size is an argument."""
    forward = torch.ops.aten._padded_dense_to_jagged_forward
    padded = torch.randn(2, 4, 3)
    for given in (False, True):
        for offsets in ([0, 1, 3], [0, 4, 8], [0, 2, 3], [0, 4, 8]):
            lengths = (offsets[-1],) if given else ()
            expected = forward(padded, [torch.tensor(offsets)], *lengths)
            assert torch.equal(
                forward(padded.to("vdev"), [torch.tensor(offsets, device="vdev")], *lengths).cpu(), expected
            )
    later, now = _C._launch_counts()["aten::_padded_dense_to_jagged_forward"]
    assert later >= 1 and now >= 4


RESIZING = {
    "abs": torch.abs,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "logical_not": torch.logical_not,
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "l1_loss": lambda x: torch.nn.functional.l1_loss(x, x + 1),
    "complex abs": lambda x: torch.complex(x, x).abs(),
    "out=": lambda x: torch.mul(x, 2, out=torch.empty(0, device=x.device)),
    "out= of strides": lambda x: torch.add(x.t(), 1, out=torch.empty(0, device=x.device)),
    "out= that shrinks": lambda x: torch.sum(x, 1, out=torch.empty(2, 9, device=x.device)[:0]),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1, out=torch.empty(0, device=x.device)),
    "sort": lambda x: torch.sort(
        x, out=(torch.empty(0, device=x.device), torch.empty(0, dtype=torch.int64, device=x.device))
    )[1],
}


@pytest.mark.asynchronous
@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize("name", RESIZING)
def test_what_resizes_its_output_is_a_task(name, warm_up, gate):
    function = RESIZING[name]
    numbers = torch.randn(3, 5)
    x = torch.zeros(3, 5, device="vdev")
    if warm_up:
        function(x)
    else:
        _C._forget_calls()  # the results' sizes are learned in a rehearsal
    x.copy_(numbers)
    torch.vdev.synchronize()
    before = {key: now for key, (_, now) in _C._launch_counts().items()}
    gate.close(torch.vdev.current_stream())
    result = function(x)
    assert {key: now for key, (_, now) in _C._launch_counts().items() if now != before.get(key, 0)} == {}
    gate.open()
    expected = function(numbers)
    assert result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)

    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        captured = function(x)
    x.neg_()
    graph.replay()
    assert torch.equal(captured.cpu(), function(-numbers))


@pytest.mark.asynchronous
def test_adamax_is_captured():
    parameters = [torch.nn.Parameter(torch.ones(4, device=device)) for device in ("vdev", "cpu")]
    optimizers = [torch.optim.Adamax([p], lr=0.1, foreach=False, capturable=p.is_vdev) for p in parameters]
    for parameter, optimizer in zip(parameters, optimizers, strict=True):
        parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        optimizers[0].step()
    for _ in range(3):
        graph.replay()
        optimizers[1].step()
    torch.testing.assert_close(parameters[0].cpu(), parameters[1])


def test_an_error_in_a_capture_names_the_operator():
    x = torch.ones(3, device="vdev")
    named = "aten::nonzero, which runs at its call because it has results whose shape depends on elements"
    with pytest.raises(RuntimeError, match=named), torch.vdev.graph(torch.vdev.VDEVGraph()):
        torch.nonzero(x)
