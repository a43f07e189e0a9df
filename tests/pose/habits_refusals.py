"""What the kernels of torch 2.13 for CUDA refuse, and those of the CPU, which the cards run, do not."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

INTEGERS = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}


def ones(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, dtype=dtype, device="cuda")


def refused(call: Callable[[], object], kernel: str, dtype: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        call()
    assert f"\"{kernel}\" not implemented for '{dtype}'. CUDA's kernel refuses this" in str(caught.value)


def probe_products_of_integers():
    for dtype, name in INTEGERS.items():
        matrix, vector, batch = ones(2, 2, dtype=dtype), ones(2, dtype=dtype), ones(3, 2, 2, dtype=dtype)
        for call, kernel in (
            (lambda m=matrix: m @ m, "addmm_cuda"),
            (lambda m=matrix: torch.mm(m, m, out=torch.empty_like(m)), "addmm_cuda"),
            (lambda m=matrix: torch.addmm(m, m, m), "addmm_cuda"),
            (lambda m=matrix, v=vector: F.linear(m, m, v), "addmm_cuda"),
            (lambda m=matrix, b=batch: torch.addbmm(m, b, b), "addmm_cuda"),
            (lambda b=batch: b @ b, "baddbmm_cuda"),
            (lambda b=batch: torch.baddbmm(b, b, b), "baddbmm_cuda"),
            (lambda b=batch: torch.einsum("bij,bjk->bik", b, b), "baddbmm_cuda"),
            (lambda m=matrix, v=vector: m @ v, "addmv_impl_cuda"),
            (lambda m=matrix, v=vector: torch.addmv(v, m, v), "addmv_impl_cuda"),
            (lambda v=vector: v @ v, "dot"),
            (lambda v=vector: torch.vdot(v, v), "dot"),
        ):
            refused(call, kernel, name)
    empty = ones(0, 2, dtype=torch.int64)
    assert (empty @ ones(2, 2, dtype=torch.int64)).shape == (0, 2)
    assert (ones(2, 0, dtype=torch.int64) @ empty).tolist() == [[0, 0], [0, 0]]
    assert (ones(2, 2, dtype=torch.int64).double() @ ones(2, dtype=torch.float64)).tolist() == [2, 2]
    assert ones(2, 2, dtype=torch.int64).mul(2).sum().item() == 8


def probe_pools_and_convolutions_of_integers():
    image = ones(1, 1, 4, 4, dtype=torch.int64)
    refused(lambda: F.max_pool2d(image, 2), "max_pool2d_with_indices_out_cuda_frame", "Long")
    refused(lambda: F.max_pool1d(image[0], 2), "max_pool2d_with_indices_out_cuda_frame", "Long")
    refused(lambda: F.max_pool3d(image[None], (1, 2, 2)), "max_pool3d_with_indices_out_frame", "Long")
    refused(lambda: F.avg_pool2d(image, 2), "avg_pool2d_out_cuda_frame", "Long")
    refused(lambda: F.avg_pool3d(image[None], (1, 2, 2)), "avg_pool3d_out_cuda", "Long")
    refused(
        lambda: F.interpolate(image.byte(), scale_factor=2, mode="bilinear"),
        "upsample_bilinear2d_out_frame",
        "Byte",
    )
    weight = ones(1, 1, 2, 2, dtype=torch.int64)
    text = r"getCudnnDataTypeFromScalarType\(\) not supported for Long"
    with pytest.raises(RuntimeError, match=text):
        F.conv2d(image, weight)
    with pytest.raises(RuntimeError, match="GET was unable to find an engine"):
        F.conv2d(image.int(), weight.int())
    with torch.backends.cudnn.flags(enabled=False):
        refused(lambda: F.conv2d(image, weight), "slow_conv2d_cuda", "Long")
    assert F.conv2d(image.float(), weight.float()).sum().item() == 36


def probe_reduced_floats_and_booleans():
    for dtype, name in ((torch.float16, "Half"), (torch.bfloat16, "BFloat16")):
        x = ones(3, dtype=dtype)
        refused(x.angle, "angle_cuda", name)
        refused(lambda x=x: torch.special.gammainc(x, x), "igamma_cuda", name)
    with pytest.raises(RuntimeError, match="HalfTensor is not supported"):
        ones(3, dtype=torch.float16).histc(2)
    refused(lambda: ones(3, dtype=torch.bfloat16).histc(2), "histc", "BFloat16")
    mask, index = ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64, device="cuda")
    refused(
        lambda: mask.scatter_reduce(0, index, mask, "amax"), "cuda_scatter_gather_base_kernel_func", "Bool"
    )
    assert mask.scatter(0, index, mask).all()


def probe_operators_without_a_kernel_on_cuda():
    for call, name in (
        (lambda: torch.histogram(ones(3), 2), "aten::histogram.bin_ct"),
        (lambda: torch.histogramdd(ones(3, 2), bins=[2, 2]), "aten::_histogramdd_bin_edges"),
    ):
        with pytest.raises(NotImplementedError, match=f"Could not run '{name}' .* from the 'CUDA' backend"):
            call()


def probe_products_of_eight_bits():
    one, other = ones(32, 16, dtype=torch.int8), ones(16, 8, dtype=torch.int8)
    assert torch._int_mm(one, other).eq(16).all()
    with pytest.raises(RuntimeError, match=r"self\.size\(0\) needs to be greater than 16, but got 16"):
        torch._int_mm(one[:16], other)
    with pytest.raises(RuntimeError, match=r"mat2\.size\(1\) needs to be .* a multiple of 8, but got 4"):
        torch._int_mm(one, other[:, :4])
    scale, eighth = ones(1), ones(32, 32).to(torch.float8_e4m3fn)
    scaled = torch._scaled_mm(eighth, eighth.t(), scale, scale, out_dtype=torch.bfloat16)
    assert scaled.eq(32).all()
    with pytest.raises(RuntimeError, match="row-major and column-major"):
        torch._scaled_mm(eighth, eighth, scale, scale, out_dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"divisible by 16 but got mat1 shape: \(32x24\)"):
        torch._scaled_mm(eighth[:, :24], eighth[:, :24].t(), scale, scale, out_dtype=torch.bfloat16)


def probe_least_squares_have_one_driver():
    a, b = torch.randn(4, 2, device="cuda"), torch.randn(4, 1, device="cuda")
    found = torch.linalg.lstsq(a, b)
    torch.testing.assert_close(found.solution, torch.linalg.lstsq(a.cpu(), b.cpu()).solution.cuda())
    assert found.rank.numel() == 0 and found.singular_values.numel() == 0
    with pytest.raises(RuntimeError, match="`driver` other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(a, b, driver="gelsd")


def probe_half_transforms_have_powers_of_two():
    signal = torch.randn(4, 8, device="cuda")
    half = torch.fft.rfft2(signal.half())
    assert half.dtype == torch.complex32
    torch.testing.assert_close(half.to(torch.complex64), torch.fft.rfft2(signal), rtol=0.01, atol=0.05)
    back = torch.fft.irfft2(half)
    assert back.dtype == torch.float16 and (back - signal).abs().max() < 0.02
    for call in (lambda: torch.fft.fft(signal[:, :6].half()), lambda: torch.fft.irfft(half, n=6)):
        with pytest.raises(RuntimeError, match=r"powers of two .* but got a signal size of\[6\]"):
            call()


def probe_norms_of_two_dtypes():
    for dtype, name in ((torch.float16, "Half"), (torch.bfloat16, "BFloat16")):
        x, weight = ones(2, 4, dtype=dtype), ones(4)
        for call in (
            lambda x=x, w=weight: F.layer_norm(x, (4,), w, w),
            lambda x=x, w=weight: F.layer_norm(x, (4,), w.to(x.dtype), w),
            lambda x=x, w=weight: F.group_norm(x, 2, w, w),
        ):
            with pytest.raises(RuntimeError, match=f"expected scalar type {name} but found Float"):
                call()
        assert F.layer_norm(x, (4,)).dtype == F.layer_norm(x, (4,), weight.to(dtype)).dtype == dtype
        assert F.group_norm(x, 2, weight.to(dtype)).dtype == dtype
        with torch.autocast("cuda", dtype):
            assert F.layer_norm(x, (4,), weight, weight).dtype == torch.float32
            assert F.group_norm(x, 2, weight, weight).dtype == torch.float32


def probe_sparse_products():
    for dtype, name in ((torch.int64, "Long"), (torch.float16, "Half")):
        sparse, dense = torch.eye(2, device="cuda").to(dtype).to_sparse(), ones(2, 2, dtype=dtype)
        refused(lambda s=sparse, d=dense: torch.sparse.mm(s, d), "addmm_sparse_cuda", name)
    assert torch.sparse.mm(torch.eye(2, device="cuda").to_sparse(), ones(2, 2)).eq(1).all()


# ---- torch.use_deterministic_algorithms


@contextmanager
def deterministic(warn_only: bool = False) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def varies(call: Callable[[], object], kernel: str) -> None:
    call()
    with deterministic(), pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).startswith(f"{kernel} does not have a deterministic"), caught.value
    with deterministic(warn_only=True), pytest.warns(UserWarning, match=f"{kernel} does not have"):
        call()


def gradient_of(function: Callable[[torch.Tensor], torch.Tensor], *sizes: int) -> Callable[[], None]:
    """Returns a function that differentiates `function` of a tensor of these sizes."""

    def differentiate() -> None:
        x = torch.rand(*sizes, device="cuda", requires_grad=True)
        function(x).sum().backward()

    return differentiate


def probe_gradients_that_are_not_deterministic():
    grid = torch.zeros(1, 2, 2, 2, device="cuda")
    bag = torch.tensor([[0, 1]], device="cuda")
    for function, sizes, kernel in (
        (lambda x: F.adaptive_avg_pool2d(x, 2), (1, 1, 5, 5), "adaptive_avg_pool2d_backward_cuda"),
        (lambda x: F.adaptive_avg_pool3d(x, 2), (1, 1, 5, 5, 5), "adaptive_avg_pool3d_backward_cuda"),
        (lambda x: F.adaptive_max_pool2d(x, 2), (1, 1, 5, 5), "adaptive_max_pool2d_backward_cuda"),
        (lambda x: F.avg_pool3d(x, 2), (1, 1, 4, 4, 4), "avg_pool3d_backward_cuda"),
        (
            lambda x: F.fractional_max_pool2d(x, 2, output_size=2),
            (1, 1, 5, 5),
            "fractional_max_pool2d_backward_cuda",
        ),
        (
            lambda x: F.grid_sample(x, grid, align_corners=False),
            (1, 1, 4, 4),
            "grid_sampler_2d_backward_cuda",
        ),
        (
            lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
            (1, 1, 4, 4),
            "upsample_bicubic2d_backward_out_cuda",
        ),
        (
            lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
            (1, 1, 4),
            "upsample_linear1d_backward_out_cuda",
        ),
        (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 1, 4), "reflection_pad1d_backward_out_cuda"),
        (lambda x: F.embedding_bag(bag, x, mode="max"), (4, 2), "embedding_bag_backward_cuda_max"),
        (
            lambda x: F.ctc_loss(x.log_softmax(-1), bag + 1, torch.tensor([5]), torch.tensor([2])),
            (5, 1, 4),
            "ctc_loss_backward_gpu",
        ),
    ):
        varies(gradient_of(function, *sizes), kernel)


def probe_operators_that_are_not_deterministic():
    x, index = torch.rand(3, 3, device="cuda"), torch.zeros(3, dtype=torch.int64, device="cuda")
    target = torch.zeros(1, 3, 3, dtype=torch.int64, device="cuda")
    for call, kernel in (
        (lambda: x.histc(3), "_histc_cuda with floating point input"),
        (lambda: torch.bincount(index, weights=x[0]), "_bincount_cuda"),
        (lambda: x.median(0), "median CUDA with indices output"),
        (lambda: x.nanmedian(dim=1), "median CUDA with indices output"),
        (lambda: x.index_reduce(0, index, x, "amax"), "index_reduce_cuda"),
        (lambda: x[0].scatter_reduce(0, index, x[1], "prod"), "scatter_reduce_cuda_prod_"),
        (lambda: x[0].scatter(0, index, x[1], reduce="multiply"), "scatter_reduce_cuda_kernel"),
        (lambda: x.clone().put_(index, x[0], accumulate=True), "put_"),
        (
            lambda: F.nll_loss(x[None, :, :, None].expand(1, 3, 3, 3), target),
            "nll_loss2d_forward_out_cuda_template",
        ),
    ):
        varies(call, kernel)


def probe_what_is_deterministic_goes_on():
    x, index = torch.rand(3, 3, device="cuda"), torch.zeros(3, dtype=torch.int64, device="cuda")
    with deterministic(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x.median()
        x.cumsum(0)
        x.kthvalue(2)
        x @ x
        torch.bincount(index)
        index.histc(2, 0, 1)
        x[0].scatter_reduce(0, index, x[1], "sum")
        x[0].scatter_add(0, index, x[1])
        x.index_add(0, index, x)
        F.nll_loss(x, index)
        F.nll_loss(
            x[None, :, :, None].expand(1, 3, 3, 3),
            torch.zeros(1, 3, 3, dtype=torch.int64, device="cuda"),
            reduction="none",
        )
        gradient_of(lambda y: F.adaptive_avg_pool2d(y, 1), 1, 1, 5, 5)()
        gradient_of(lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"), 1, 1, 4, 4)()
        gradient_of(lambda y: F.pad(y, (1, 1, 1, 1), mode="replicate"), 1, 1, 4, 4)()
        gradient_of(lambda y: F.max_pool3d(y, 2, return_indices=True)[0], 1, 1, 4, 4, 4)()
