// An extension that uses torch's headers of CUDA, as most of them do: tensors, guards, streams and events.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

#include <unordered_set>
#include <vector>

template <class T>
__global__ void bias_gelu(const T* __restrict__ x, const T* __restrict__ bias, T* y, int64_t n,
                          int64_t width) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float sum = static_cast<float>(x[i]) + static_cast<float>(bias[i % width]);
    y[i] = static_cast<T>(0.5f * sum * (1.0f + erff(sum * 0.70710678f)));
  }
}

__global__ void row_sums(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                         float* sums) {
  __shared__ float of_warps[32];
  float sum = 0;
  for (int i = threadIdx.x; i < x.size(1); i += blockDim.x) sum += x[blockIdx.x][i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sums[blockIdx.x] = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sums[blockIdx.x] += of_warps[warp];
}

torch::Tensor gelu(const torch::Tensor& x, const torch::Tensor& bias) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
  auto y = torch::empty_like(x);
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "bias_gelu", [&] {
    bias_gelu<scalar_t><<<4, 128, 0, stream>>>(x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(),
                                               y.data_ptr<scalar_t>(), x.numel(), bias.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

torch::Tensor sums(const torch::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto result = torch::empty({x.size(0)}, x.options());
  const auto side = at::cuda::getStreamFromPool(/*priority=*/-1);
  at::cuda::CUDAEvent begin, end;
  begin.record();
  begin.block(side);
  row_sums<<<x.size(0), 256, 0, side>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                        result.data_ptr<float>());
  AT_CUDA_CHECK(cudaGetLastError());
  end.record(side);
  end.block(at::cuda::getCurrentCUDAStream());
  return result;
}

/// Returns what torch's own functions and classes of CUDA tell.
std::vector<int64_t> habits() {
  std::vector<int64_t> found;
  c10::cuda::OptionalCUDAGuard guard;
  guard.set_index(1);
  found.push_back(at::cuda::current_device());
  guard.reset();
  found.push_back(at::cuda::current_device());
  found.push_back(c10::cuda::MaybeSetDevice(1));
  found.push_back(c10::cuda::SetDevice(0));
  const auto one = at::cuda::getStreamFromPool(), other = at::cuda::getStreamFromPool();
  {
    const std::vector<at::cuda::CUDAStream> streams{one};
    const c10::cuda::CUDAMultiStreamGuard both(streams);
    found.push_back(at::cuda::getCurrentCUDAStream() == one);
  }
  found.push_back(static_cast<int64_t>(std::unordered_set<at::cuda::CUDAStream>{one, other, one}.size()));
  const auto packed = one.pack3();
  found.push_back(at::cuda::CUDAStream::unpack3(packed.stream_id, packed.device_index, packed.device_type) ==
                  one);
  at::cuda::CUDAEvent event(cudaEventDefault), later(cudaEventDefault);
  found.push_back(event.query() && !event.isCreated());
  event.record(one);
  later.record(one);
  later.synchronize();
  found.push_back(event.query() && event.elapsed_time(later) >= 0);
  const auto moved = std::move(event);
  found.push_back(moved.isCreated() && !event.isCreated());
  c10::cuda::stream_synchronize(one);
  return found;
}
