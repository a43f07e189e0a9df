"""What kernels compute on cards is right, in every kind of arithmetic that Triton's language has."""

import pytest
import small_kernels as kernels
import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_have_the_bits_of_torch(card, dtype):
    x, y = (torch.randn(1000).mul(20).to(dtype).to(card) for _ in range(2))
    out = torch.empty_like(x)
    kernels.add[(8,)](x, y, out, 1000, BLOCK=128)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_reductions_of_rows(card, dtype):
    x = torch.randn(5, 100, device=card).to(dtype)
    out = torch.zeros(5, 4, device=card)
    kernels.row_statistics[(5,)](x, out, 100, BLOCK=128)
    expected = torch.stack((x.amax(1), x.sum(1), x.argmax(1), x.sum(1)), dim=1).float()
    torch.testing.assert_close(out, expected, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-2)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_and_reductions_by_a_function_that_does_not_commute(card, reverse):
    a, b = torch.rand(16), torch.randn(16)
    scanned, last = torch.zeros(16, device=card), torch.zeros(1, device=card)
    kernels.recurrence[(1,)](a.to(card), b.to(card), scanned, last, REVERSE=reverse, BLOCK=16)
    order = range(15, -1, -1) if reverse else range(16)
    state, expected = torch.zeros(()), torch.zeros(16)
    for i in order:
        state = state * a[i] + b[i]
        expected[i] = state
    torch.testing.assert_close(scanned.cpu(), expected)
    state = torch.zeros(())
    for i in range(16):
        state = state * a[i] + b[i]
    torch.testing.assert_close(last.cpu()[0], state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_matrix_product_by_block_pointers(card, dtype):
    a, b = torch.randn(40, 50).to(dtype), torch.randn(50, 70).to(dtype)
    out = torch.empty(40, 70, device=card, dtype=dtype)
    kernels.matmul[(2, 3)](a.to(card), b.to(card), out, 40, 70, 50, BM=32, BN=32, BK=16)
    expected = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)


def test_tensor_descriptors(card):
    x = torch.randn(30, 64, device=card)
    out = torch.zeros_like(x)
    kernels.descriptor_copy[(2, 2)](x, out, 30, 64, BM=16, BN=32)
    assert torch.equal(out, x)


def test_atomic_additions_count_each_element(card):
    x = torch.randint(0, 7, (500,))
    counts = torch.zeros(7, dtype=torch.int32, device=card)
    kernels.histogram[(4,)](x.to(card), counts, 500, BLOCK=128)
    assert counts.tolist() == x.bincount(minlength=7).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_atomic_additions_of_floats_to_one_element(card, dtype):
    total = torch.zeros(1, dtype=dtype, device=card)
    kernels.accumulate[(4,)](torch.full((100,), 0.5, dtype=dtype, device=card), total, 100, BLOCK=32)
    assert total.item() == 50.0


@pytest.mark.parametrize("activation", [None, "square", kernels.square], ids=["none", "name", "function"])
def test_branches_loops_and_functions_as_arguments(card, activation):
    x = torch.tensor([3.0, 50.0, 1e-6, 200.0])
    out = torch.zeros(4, device=card)
    kernels.control_flow[(6,)](x.to(card), out, 4, 40.0, ACTIVATION=activation, BLOCK=3)
    expected = []
    for value in x.tolist():
        count = 0
        while value < 40 and count < 10:
            value, count = value * 2, count + 1
        value = (value * value if activation else value) + 3
        expected.append(value if count > 0 or value > 100 else -value)
    torch.testing.assert_close(out.cpu(), torch.tensor(expected))


def test_functions_of_libdevice(card):
    x = torch.randn(64)
    out = torch.empty(64, device=card)
    kernels.with_libdevice[(1,)](x.to(card), out, BLOCK=64)
    torch.testing.assert_close(out.cpu(), torch.tanh(x) + torch.rsqrt(x.exp()) + torch.erf(x))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int32], ids=str)
def test_conversions_round_to_nearest_even(card, target):
    x = torch.cat(
        (torch.randn(200) * 100, torch.tensor([1.00390625, 1.01171875, -0.0, 3e-39, 65504.0, 1e-8]))
    )
    x = torch.cat((x, torch.arange(50) / 16)).clamp(-57344, 57344)  # the range of float8_e5m2
    out = torch.empty(256, device=card, dtype=target)
    kernels.cast[(1,)](x.to(card), out, BLOCK=256)
    assert torch.equal(out.cpu().float(), x.to(target).float())


def test_narrow_floats_with_infinities_and_nan(card):
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 3.4e38])
    out = torch.empty(4, device=card, dtype=torch.bfloat16)
    kernels.cast[(1,)](x.to(card), out, BLOCK=4)
    assert torch.equal(out.cpu().isnan(), x.isnan())
    assert torch.equal(out.cpu().nan_to_num(1.0), x.to(torch.bfloat16).nan_to_num(1.0))


def test_random_numbers_depend_on_the_seed_alone(card):
    first, again, other = (torch.empty(256, device=card) for _ in range(3))
    kernels.random_numbers[(2,)](first, 7, BLOCK=128)
    kernels.random_numbers[(1,)](again, 7, BLOCK=256)
    kernels.random_numbers[(2,)](other, 8, BLOCK=128)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0 <= first.min() < 0.1 and 0.9 < first.max() < 1
    assert abs(first.mean().item() - 0.5) < 0.1


def test_pointers_that_a_kernel_loads(card):
    parts = [torch.full((8,), float(i), device=card) for i in range(3)]
    pointers = torch.tensor([part.data_ptr() for part in parts], device=card)
    out = torch.empty(8, device=card)
    kernels.sum_through_pointers[(1,)](pointers, out, COUNT=3, BLOCK=8)
    assert out.tolist() == [3.0] * 8


@pytest.fixture
def theirs(monkeypatch):
    """The kernels with which torch tests its support of Triton."""
    from torch.utils import _triton

    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    from torch.testing._internal import triton_utils

    return triton_utils


BLOCK = {"BLOCK_SIZE": 64}
# Kernel, arguments behind the tensors, and what comes of tensors x and y of 64 elements.
SUM, DIFFERENCE = (lambda x, y: x + y), (lambda x, y: x - y)
OF_TWO = [
    ("add_kernel", (64,), BLOCK, SUM),
    ("add_kernel_with_import", (64,), BLOCK, SUM),
    ("add_kernel_with_block_ptr", (64,), BLOCK, SUM),
    ("add_kernel_autotuned", (64,), {}, SUM),
    ("sub_kernel", (64,), BLOCK, DIFFERENCE),
    ("sub_kernel_autotuned", (64,), {}, DIFFERENCE),
    ("add_kernel_with_scaling", (64, 0.5), BLOCK, lambda x, y: (x + y) * 0.5),
    ("add_kernel_with_boolean_param", (64,), {**BLOCK, "add_xy": True}, SUM),
    ("add_kernel_with_boolean_param", (64,), {**BLOCK, "add_xy": False}, lambda x, y: x),
    ("add_kernel_with_optional_param", (64,), {**BLOCK, "ARGS_PASSED": "two"}, SUM),
    ("add_kernel_with_none_param_and_equal_to_1_arg", (64, 1), {**BLOCK, "ARGS_PASSED": "two"}, SUM),
    ("atomic_add_kernel", (64,), BLOCK, SUM),
    ("add_4_times_kernel", (64,), BLOCK, SUM),
    ("cond_op_kernel", (64,), BLOCK, SUM),
]


@pytest.mark.parametrize(("name", "more", "options", "expected"), OF_TWO)
def test_kernels_of_torch_s_tests(card, theirs, name, more, options, expected):
    x, y, out = torch.randn(64, device=card), torch.randn(64, device=card), torch.zeros(64, device=card)
    getattr(theirs, name)[(1,)](x, y, out, *more, **options)
    assert torch.equal(out, expected(x, y))


def test_other_kernels_of_torch_s_tests(card, theirs):
    x, y, out = torch.randn(64, device=card), torch.randn(64, device=card), torch.zeros(64, device=card)
    theirs.mul2_kernel[(1,)](x, out, 64, **BLOCK)
    assert torch.equal(out, x * 2)
    twice = x.clone()
    theirs.indirection_kernel[(1,)](twice, out, 64, ACTIVATION="mul2_inplace_kernel", **BLOCK)
    assert torch.equal(twice, x * 2) and torch.equal(out, twice)
    theirs.indirection_kernel[(1,)](x, out, 64, ACTIVATION="add_kernel", **BLOCK)
    assert torch.equal(out, x)
    theirs.add_kernel_out_of_order_fn2[(1,)](x, y, 64, out, **BLOCK)
    assert torch.equal(out, x + y)
    theirs.add_kernel_autotuned_weird_param_order[(1,)](in_ptr0=x, in_ptr1=y, n_elements=64, out_ptr=out)
    assert torch.equal(out, x + y)
    mask = x > 0
    theirs.masked_add_kernel_with_bool_tensor[(1,)](x, y, mask, out, 64, **BLOCK)
    assert torch.equal(out, torch.where(mask, x + y, x))
    theirs.kernel_with_docstring_double_quotes[(1,)](out, 64, **BLOCK)
    assert torch.equal(out, torch.ones_like(out))
    theirs.kernel_with_block_ptr_2d[(1,)](x, out, 64, **BLOCK)
    assert torch.equal(out, x)
    square, result = torch.randn(16, 16, device=card), torch.zeros(16, 16, device=card)
    theirs.add_kernel_2d_autotuned[(1, 1)](square, square, result, 16, 16)
    assert torch.equal(result, square + square.T)
    theirs.double_strided_kernel[(1, 1)](square, result, 16, 16, X_BLOCK_SIZE=16, Y_BLOCK_SIZE=16)
    assert torch.equal(result, square * 2)
