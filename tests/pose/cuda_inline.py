"""Builds an extension with torch's own headers by load_inline(), and compares it with torch's operators.

test_cuda_extensions.py runs it in pose.
"""

import sys

import torch
from torch.utils.cpp_extension import load_inline

CPP = """
torch::Tensor gated(torch::Tensor x, torch::Tensor y);
torch::Tensor row_sums(torch::Tensor x);
void refused(torch::Tensor x);
"""
CUDA = r"""
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T>
using Matrix = torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits>;

template <typename T>
__global__ void gated_kernel(const Matrix<T> x, const Matrix<T> y, Matrix<T> out) {
  const int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column < x.size(1)) out[row][column] = x[row][column] / (T(1) + ::exp(-y[row][column]));
}

torch::Tensor gated(torch::Tensor x, torch::Tensor y) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto out = torch::empty_like(x);
  const dim3 blocks((x.size(1) + 63) / 64, x.size(0));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gated", ([&] {
    gated_kernel<scalar_t><<<blocks, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        y.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        out.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

template <typename T>
__global__ void row_sums_kernel(const T* x, T* out, int64_t width) {
  const T* row = x + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) gpuAtomicAdd(&out[blockIdx.x], row[i]);
}

torch::Tensor row_sums(torch::Tensor x) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = torch::zeros({x.size(0)}, x.options());
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "row_sums", [&] {
    row_sums_kernel<<<x.size(0), 32, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.size(1));
  });
  AT_CUDA_CHECK(cudaGetLastError());
  return out;
}

__global__ void refused_kernel(float* x) {}
void refused(torch::Tensor x) {
  refused_kernel<<<1, 4096>>>(x.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""


def main(folder: str) -> None:
    module = load_inline(
        "inlined",
        cpp_sources=CPP,
        cuda_sources=CUDA,
        functions=["gated", "row_sums", "refused"],
        extra_cuda_cflags=["-O1", "--use_fast_math"],
        build_directory=folder,
    )
    for dtype in (torch.float32, torch.float64):
        x, y = (torch.randn(70, 33, dtype=dtype, device="cuda:1").t() for _ in range(2))
        torch.testing.assert_close(module.gated(x, y), x * y.sigmoid())
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.uint8):
        x = torch.randint(0, 3, (9, 40), device="cuda").to(dtype)
        assert torch.equal(module.row_sums(x), x.sum(1).to(dtype)), dtype
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(3, 100, device="cuda")
        sums = module.row_sums(x)
    stream.synchronize()
    assert sums.tolist() == [100, 100, 100]
    try:
        module.refused(torch.ones(3, device="cuda"))
    except RuntimeError as error:
        assert "CUDA error: invalid configuration argument" in str(error)
    else:
        raise AssertionError("a launch of 4096 threads was taken")
    print("all equal")


if __name__ == "__main__":
    main(sys.argv[1])
