"""Operators whose CPU kernels refuse float16 and bfloat16, and which GPUs have for them."""

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
