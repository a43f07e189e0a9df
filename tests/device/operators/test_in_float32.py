"""Operators that are computed in float32 for float16 and bfloat16, as on GPUs: those whose CPU kernels refuse
these dtypes, and those whose CPU kernels add up in them."""

import pytest
import torch
import torch.nn.functional as F

SMALL = [torch.float16, torch.bfloat16]
TARGET = torch.tensor([1, 0])
LABELS = torch.tensor([[0, 2, -1], [1, -1, -1]])

# By the name of the operator: a function, and the sizes of what it differentiates.
FUNCTIONS = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (1, 2, 4, 4, 4)),
    "bilinear": (lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True), (1, 2, 6, 6)),
    "bicubic": (lambda x: F.interpolate(x, (3, 3), mode="bicubic", antialias=True), (1, 2, 6, 6)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, TARGET.to(x.device)), (2, 3)),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, LABELS.to(x.device)), (2, 3)),
}


def with_gradient(function, x):
    x = x.detach().requires_grad_()
    result = function(x)
    result.sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_that_of_float32_rounded(name, dtype):
    function, sizes = FUNCTIONS[name]
    x = torch.rand(sizes).to(dtype)
    for found, exact in zip(
        with_gradient(function, x.to("vdev")), with_gradient(function, x.float()), strict=True
    ):
        assert found.dtype == dtype and found.device.type == "vdev"
        torch.testing.assert_close(found.cpu(), exact.to(dtype))


def test_other_dtypes_are_not_touched():
    x = torch.rand(1, 1, 2, 2, 2, dtype=torch.float64, device="vdev")
    assert F.avg_pool3d(x, 2).dtype == torch.float64


@pytest.mark.parametrize("dtype", SMALL)
def test_products_with_a_wider_result(dtype):
    one, other = torch.randn(3, 4).to(dtype), torch.randn(4, 5).to(dtype)
    card, second = one.to("vdev"), other.to("vdev")
    exact = one.float() @ other.float()
    found = torch.mm(card, second, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), exact)
    out = torch.empty(0, device="vdev")
    torch.mm(card, second, out_dtype=torch.float32, out=out)
    assert out.equal(found)
    torch.testing.assert_close(
        torch.bmm(card[None], second[None], out_dtype=torch.float32).cpu(), exact[None]
    )
    bias = torch.randn(5).to(dtype)
    torch.testing.assert_close(
        torch.addmm(bias.to("vdev"), card, second, out_dtype=torch.float32).cpu(), exact + bias.float()
    )
    assert torch.mm(card, second, out_dtype=dtype).dtype == dtype
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32"):
        torch.mm(card, second, out_dtype=torch.float64)


def test_dtypes_that_differ_stay_an_error():
    half, single = torch.ones(2, 2, dtype=torch.float16, device="vdev"), torch.ones(2, 2, device="vdev")
    brain = half.to(torch.bfloat16)
    for one, other in ((half, single), (single, half), (half, brain), (brain, single)):
        with pytest.raises(RuntimeError, match=r"same dtype|scalar type"):
            torch.mm(one, other)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(half, half, out=single)
    image, weight = half[None, None], single[None, None]
    with pytest.raises(RuntimeError, match=r"should be the same|scalar type"):
        torch.conv2d(image, weight)


@pytest.mark.parametrize("dtype", SMALL)
def test_a_product_needs_no_memory_for_wider_copies(dtype):
    """A card that is full multiplies with the slow kernel."""
    card = torch.device("vdev", torch.vdev.current_device())
    one, other = torch.randn(512, 2048).to(dtype), torch.randn(2048, 8).to(dtype)
    exact = (one.float() @ other.float()).to(dtype)
    card_one, card_other = one.to(card), other.to(card)
    torch.mm(card_one, card_other)  # what the result looks like is known from here on
    torch.vdev.empty_cache()
    torch.vdev.set_per_process_memory_fraction(
        (torch.vdev.memory_reserved(card) + (4 << 20)) / torch.vdev.mem_get_info(card)[1], card
    )
    try:
        found = torch.mm(card_one, card_other).cpu()
    finally:
        torch.vdev.set_per_process_memory_fraction(1.0, card)
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.5)


MANY = 8192


def all_of(x, row=0):
    return torch.full((MANY,), row, device=x.device)


# By what is differentiated: a function of an input and a weight, and their sizes.
SUMS = {
    "layer_norm": (lambda x, w: F.layer_norm(x, (8,), w, w), (MANY, 8), (8,)),
    "layer_norm_without_bias": (lambda x, w: F.layer_norm(x, (8,), w), (MANY, 8), (8,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (MANY // 16, 8, 4, 4), (8,)),
    "embedding": (lambda x, w: x * F.embedding(all_of(w), w), (MANY, 8), (4, 8)),
    "embedding_bag": (lambda x, w: x * F.embedding_bag(all_of(w)[:, None], w, mode="sum"), (MANY, 8), (4, 8)),
    "index": (lambda x, w: x * w[all_of(w)], (MANY, 8), (4, 8)),
    "index_put": (lambda x, w: w.index_put((all_of(w),), x, accumulate=True), (MANY, 8), (4, 8)),
    "avg_pool2d": (lambda x, w: w * F.avg_pool2d(x, 8, stride=1), (2, 3, 16, 16), (9, 9)),
    "fold": (lambda x, w: w * F.fold(x, (16, 16), 8), (2, 64, 81), (16, 16)),
}


def with_gradients(function, x, weight):
    x, weight = (one.detach().requires_grad_() for one in (x, weight))
    result = function(x, weight)
    result.sum().backward()
    return result.detach(), x.grad, weight.grad


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", SUMS)
def test_many_summands_are_added_in_float32(name, dtype):
    function, *sizes = SUMS[name]
    x, weight = (torch.rand(one).to(dtype) for one in sizes)
    exact = with_gradients(function, x.double(), weight.double())
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(with_gradients(function, x.to("vdev"), weight.to("vdev")))
    finally:
        torch.set_num_threads(before)
    for one, other, right in zip(*found, exact, strict=True):
        assert one.dtype == dtype
        error = (one.cpu().double() - right).abs().max() / right.abs().max().clamp(min=1)
        assert error < 4 * torch.finfo(dtype).eps
        assert (one.cpu().double() - other.cpu().double()).abs().max() <= torch.finfo(
            dtype
        ).eps * right.abs().max()


@pytest.mark.parametrize("dtype", SMALL)
def test_statistics_of_norms_are_float32(dtype):
    x, weight = torch.rand(4, 8).to("vdev", dtype), torch.ones(8, device="vdev", dtype=dtype)
    for result, mean, deviation in (
        torch.native_layer_norm(x, (8,), weight, weight, 1e-5),
        torch.native_layer_norm(x, (8,), None, None, 1e-5),
        torch.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5),
    ):
        assert result.dtype == dtype
        assert mean.dtype == deviation.dtype == torch.float32
    mixed = torch.native_layer_norm(x, (8,), weight.float(), weight.float(), 1e-5)
    assert [one.dtype for one in mixed] == [dtype, torch.float32, torch.float32]


@pytest.mark.parametrize("dtype", SMALL)
def test_running_statistics_of_half_precision_are_written(dtype):
    x = torch.rand(16, 8).to(dtype)
    mean, variance = (make(8, dtype=dtype, device="vdev") for make in (torch.zeros, torch.ones))
    F.batch_norm(x.to("vdev"), mean, variance, training=True, momentum=1.0)
    assert mean.dtype == variance.dtype == dtype
    torch.testing.assert_close(mean.cpu(), x.float().mean(0).to(dtype))
    torch.testing.assert_close(variance.cpu(), x.float().var(0).to(dtype))


def test_a_product_that_is_to_be_float32_stays_so():
    x = torch.full((4,), 2.0, dtype=torch.float16, device="vdev")
    assert x.prod(dtype=torch.float32).dtype == torch.float32
    assert x.prod(0).item() == 16 and x.prod().dtype == torch.float16


def test_a_product_of_many_factors_is_rounded_once():
    factors = torch.full((200,), 1.0078125, dtype=torch.bfloat16)
    right = factors.double().prod().to(torch.bfloat16)
    assert factors.to("vdev").prod().cpu() == factors.to("vdev").prod(0).cpu() == right


def test_products_of_complex_halves_are_refused():
    x = torch.zeros(2, 2, dtype=torch.complex32, device="vdev")
    for product in (lambda: x @ x, lambda: torch.addmm(x, x, x), lambda: torch.bmm(x[None], x[None])):
        with pytest.raises(RuntimeError, match="not implemented for 'ComplexHalf'"):
            product()
