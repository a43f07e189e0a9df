// Kernels for cuda_extension.py, in the forms that public ones have. They are compiled without torch's
// headers, which takes seconds, and are called by the addresses of their tensors.
#include <cassert>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define EXPORT extern "C" int
// As C10_CUDA_KERNEL_LAUNCH_CHECK, for callers that have no exceptions.
#define CHECKED return static_cast<int>(cudaGetLastError())

constexpr int kThreads = 256;

// The gates of a recurrent cell: a function of the device that is a template, and blockIdx.y.
namespace cell {
template <typename T>
__device__ __forceinline__ T sigmoid(T x) {
  return 1.0 / (1.0 + exp(-x));
}
template <typename T>
__device__ __forceinline__ T elu(T x, T alpha = 1.0) {
  return fmax(0.0, x) + fmin(0.0, alpha * (exp(x) - 1.0));
}
template <typename T>
__global__ void forward(const T* __restrict__ gates, const T* __restrict__ old, T* __restrict__ hidden,
                        T* __restrict__ cell, size_t size) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y;
  if (column < size) {
    const T* gate = gates + row * size * 3;
    cell[row * size + column] =
        old[row * size + column] + elu(gate[2 * size + column]) * sigmoid(gate[column]);
    hidden[row * size + column] = tanh(cell[row * size + column]) * sigmoid(gate[size + column]);
  }
}
}  // namespace cell

template <typename T>
void run_cell(const T* gates, const T* old, T* hidden, T* cell, int batch, int size, cudaStream_t stream) {
  const dim3 blocks((size + 1023) / 1024, batch);
  cell::forward<T><<<blocks, 1024, 0, stream>>>(gates, old, hidden, cell, size);
}
EXPORT cell_float(const float* gates, const float* old, float* hidden, float* cell, int batch, int size,
                  cudaStream_t stream) {
  run_cell(gates, old, hidden, cell, batch, size, stream);
  CHECKED;
}
EXPORT cell_double(const double* gates, const double* old, double* hidden, double* cell, int batch, int size,
                   cudaStream_t stream) {
  run_cell(gates, old, hidden, cell, batch, size, stream);
  CHECKED;
}

__global__ void mul_add_kernel(int n, const float* a, const float* b, float c, float* result) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) result[i] = a[i] * b[i] + c;
}
EXPORT mul_add(const float* a, const float* b, float c, float* result, int n, cudaStream_t stream) {
  mul_add_kernel<<<(n + 255) / 256, 256, 0, stream>>>(n, a, b, c, result);
  CHECKED;
}

// Four floats at once, and the approximation of GELU by tanh.
__global__ void __launch_bounds__(kThreads) bias_gelu_kernel(const float4* __restrict__ x,
                                                             const float4* __restrict__ bias,
                                                             float4* __restrict__ y, int n, int width) {
  const auto gelu = [] __device__(float v) {
    return 0.5f * v * (1.f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
  };
  KERNEL_LOOP(i, n) {
    const float4 v = __ldg(x + i), b = __ldg(bias + i % width);
    y[i] = make_float4(gelu(v.x + b.x), gelu(v.y + b.y), gelu(v.z + b.z), gelu(v.w + b.w));
  }
}
EXPORT bias_gelu(const float* x, const float* bias, float* y, int rows, int width, cudaStream_t stream) {
  const int n = rows * width / 4;
  bias_gelu_kernel<<<min(CEIL_DIV(n, kThreads), 64), kThreads, 0, stream>>>(
      reinterpret_cast<const float4*>(x), reinterpret_cast<const float4*>(bias), reinterpret_cast<float4*>(y), n,
      width / 4);
  CHECKED;
}

// The same addition of pairs in half, and in bfloat16.
__global__ void add_pairs(const __half2* a, const __half2* b, __half2* c, int n) {
  KERNEL_LOOP(i, n) c[i] = __hadd2(a[i], b[i]);
}
__global__ void add_pairs(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* c, int n) {
  KERNEL_LOOP(i, n) c[i] = __hadd2(a[i], b[i]);
}
EXPORT add_half(const void* a, const void* b, void* c, int n, cudaStream_t stream) {
  add_pairs<<<2, 64, 0, stream>>>((const __half2*)a, (const __half2*)b, (__half2*)c, n / 2);
  CHECKED;
}
EXPORT add_bfloat16(const void* a, const void* b, void* c, int n, cudaStream_t stream) {
  add_pairs<<<2, 64, 0, stream>>>((const __nv_bfloat162*)a, (const __nv_bfloat162*)b, (__nv_bfloat162*)c, n / 2);
  CHECKED;
}

// A layer norm: sums in a warp by shuffles, and of the warps through shared memory.
template <typename T>
__inline__ __device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = warpSize / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}
template <typename T>
__inline__ __device__ T block_sum(T value) {
  static __shared__ T shared[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = threadIdx.x < (blockDim.x + 31) / 32 ? shared[lane] : T(0);
  if (warp == 0) value = warp_sum(value);
  if (threadIdx.x == 0) shared[0] = value;
  __syncthreads();
  return shared[0];
}
template <typename T, int kUnroll>
__global__ void layer_norm_kernel(const T* x, const T* weight, const T* bias, T* y, int width, T epsilon) {
  const T* row = x + blockIdx.x * width;
  T sum = 0, squares = 0;
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
  const T mean = block_sum<T>(sum) / width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  const T scale = rsqrtf(block_sum<T>(squares) / width + epsilon);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[blockIdx.x * width + i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
EXPORT layer_norm(const float* x, const float* weight, const float* bias, float* y, int rows, int width,
                  cudaStream_t stream) {
  layer_norm_kernel<float, 4><<<rows, kThreads, 0, stream>>>(x, weight, bias, y, width, 1e-5f);
  CHECKED;
}

// Blelloch's prefix sum of one block, in dynamic shared memory.
template <typename T>
__global__ void prefix_sum_kernel(const T* in, T* out, int n) {
  extern __shared__ __align__(sizeof(double)) unsigned char memory[];
  T* temp = reinterpret_cast<T*>(memory);
  const int t = threadIdx.x;
  temp[2 * t] = in[2 * t], temp[2 * t + 1] = in[2 * t + 1];
  int offset = 1;
  for (int d = n >> 1; d > 0; d >>= 1) {
    __syncthreads();
    if (t < d) temp[offset * (2 * t + 2) - 1] += temp[offset * (2 * t + 1) - 1];
    offset *= 2;
  }
  if (t == 0) temp[n - 1] = 0;
  for (int d = 1; d < n; d *= 2) {
    offset >>= 1;
    __syncthreads();
    if (t < d) {
      const int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
      const T left = temp[a];
      temp[a] = temp[b];
      temp[b] += left;
    }
  }
  __syncthreads();
  out[2 * t] = temp[2 * t], out[2 * t + 1] = temp[2 * t + 1];
}
EXPORT prefix_sum(const float* in, float* out, int n, cudaStream_t stream) {
  prefix_sum_kernel<float><<<1, n / 2, n * sizeof(float), stream>>>(in, out, n);
  CHECKED;
}

// A histogram: atomics of the block, then of the card.
__global__ void histogram_kernel(const int* values, int* counts, float* total, int n, int bins) {
  extern __shared__ int local[];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  KERNEL_LOOP(i, n) {
    atomicAdd(&local[values[i]], 1);
    atomicAdd(total, 1.0f);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}
EXPORT histogram(const int* values, int* counts, float* total, int n, int bins, cudaStream_t stream) {
  cudaMemsetAsync(counts, 0, bins * sizeof(int), stream);
  histogram_kernel<<<8, kThreads, bins * sizeof(int), stream>>>(values, counts, total, n, bins);
  CHECKED;
}

// A product of matrices in tiles, with two dimensions of threads and blocks.
template <int kTile>
__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float tile_a[kTile][kTile + 1], tile_b[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int t = 0; t < CEIL_DIV(k, kTile); ++t) {
    const int ka = t * kTile + threadIdx.x, kb = t * kTile + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
EXPORT matmul(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream) {
  constexpr int tile = 16;
  dim3 threads(tile, tile), blocks(CEIL_DIV(n, tile), CEIL_DIV(m, tile));
  matmul_kernel<tile><<<blocks, threads, 0, stream>>>(a, b, c, m, n, k);
  CHECKED;
}

// RoI align: bilinear samples of regions.
template <typename T>
__device__ T bilinear(const T* plane, int height, int width, T y, T x) {
  if (y < -1.0 || y > height || x < -1.0 || x > width) return 0;
  y = max(y, (T)0), x = max(x, (T)0);
  int low_y = (int)y, low_x = (int)x, high_y = low_y + 1, high_x = low_x + 1;
  if (low_y >= height - 1) high_y = low_y = height - 1, y = (T)low_y;
  if (low_x >= width - 1) high_x = low_x = width - 1, x = (T)low_x;
  const T ly = y - low_y, lx = x - low_x, hy = 1. - ly, hx = 1. - lx;
  return hy * hx * plane[low_y * width + low_x] + hy * lx * plane[low_y * width + high_x] +
         ly * hx * plane[high_y * width + low_x] + ly * lx * plane[high_y * width + high_x];
}
template <typename T>
__global__ void roi_align_kernel(int n, const T* input, const T scale, int channels, int height, int width,
                                 int pooled, int samples, const T* rois, T* output) {
  KERNEL_LOOP(index, n) {
    const int pw = index % pooled, ph = index / pooled % pooled, c = index / pooled / pooled % channels;
    const T* roi = rois + index / pooled / pooled / channels * 5;
    const T x = roi[1] * scale - T(0.5), y = roi[2] * scale - T(0.5);
    const T bin_w = (roi[3] - roi[1]) * scale / pooled, bin_h = (roi[4] - roi[2]) * scale / pooled;
    const T* plane = input + ((int)roi[0] * channels + c) * height * width;
    T sum = 0.;
    for (int iy = 0; iy < samples; iy++)
      for (int ix = 0; ix < samples; ix++)
        sum += bilinear(plane, height, width, y + ph * bin_h + (iy + .5f) * bin_h / samples,
                        x + pw * bin_w + (ix + .5f) * bin_w / samples);
    output[index] = sum / (samples * samples);
  }
}
EXPORT roi_align(const float* input, const float* rois, float* output, int regions, int channels, int height,
                 int width, int pooled, int samples, float scale, cudaStream_t stream) {
  const int n = regions * channels * pooled * pooled;
  roi_align_kernel<float><<<min(CEIL_DIV(n, 512), 4096), 512, 0, stream>>>(n, input, scale, channels, height, width,
                                                                           pooled, samples, rois, output);
  CHECKED;
}

// Which boxes overlap, in masks of 64 bits: blocks that leave before the barrier, and `1ULL << i`.
int const kBoxes = sizeof(unsigned long long) * 8;
__device__ inline float overlap(float const* const a, float const* const b) {
  const float left = max(a[0], b[0]), right = min(a[2], b[2]), top = max(a[1], b[1]), bottom = min(a[3], b[3]);
  const float common = max(right - left, 0.f) * max(bottom - top, 0.f);
  return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common);
}
__global__ void nms_kernel(const int n, const float threshold, const float* boxes, unsigned long long* mask) {
  const int row_start = blockIdx.y, column_start = blockIdx.x;
  if (row_start > column_start) return;
  const int rows = min(n - row_start * kBoxes, kBoxes), columns = min(n - column_start * kBoxes, kBoxes);
  __shared__ float block_boxes[kBoxes * 4];
  if (threadIdx.x < columns) {
    for (int i = 0; i < 4; ++i)
      block_boxes[threadIdx.x * 4 + i] = boxes[(kBoxes * column_start + threadIdx.x) * 4 + i];
  }
  __syncthreads();
  if (threadIdx.x < rows) {
    const int box = kBoxes * row_start + threadIdx.x;
    unsigned long long bits = 0;
    for (int i = row_start == column_start ? threadIdx.x + 1 : 0; i < columns; i++) {
      if (overlap(boxes + box * 4, block_boxes + i * 4) > threshold) bits |= 1ULL << i;
    }
    mask[box * CEIL_DIV(n, kBoxes) + column_start] = bits;
  }
}
EXPORT nms(const float* boxes, unsigned long long* mask, int n, float threshold, cudaStream_t stream) {
  const int blocks = CEIL_DIV(n, kBoxes);
  nms_kernel<<<dim3(blocks, blocks), kBoxes, 0, stream>>>(n, threshold, boxes, mask);
  CHECKED;
}

// The first `samples` points within a ball.
__global__ void ball_query_kernel(int n, int m, float radius, int samples, const float* __restrict__ centers,
                                  const float* __restrict__ points, int* __restrict__ found) {
  points += blockIdx.x * n * 3;
  centers += blockIdx.x * m * 3;
  found += blockIdx.x * m * samples;
  for (int j = threadIdx.x; j < m; j += blockDim.x) {
    const float *center = centers + j * 3;
    for (int k = 0, count = 0; k < n && count < samples; ++k) {
      const float dx = center[0] - points[k * 3], dy = center[1] - points[k * 3 + 1], dz = center[2] - points[k * 3 + 2];
      if (dx * dx + dy * dy + dz * dz >= radius * radius) continue;
      if (count == 0)
        for (int l = 0; l < samples; ++l) found[j * samples + l] = k;
      found[j * samples + count++] = k;
    }
  }
}
EXPORT ball_query(const float* centers, const float* points, int* found, int batch, int n, int m, int samples,
                  float radius, cudaStream_t stream) {
  ball_query_kernel<<<batch, 128, 0, stream>>>(n, m, radius, samples, centers, points, found);
  CHECKED;
}

// A sum over the lanes of one warp, which is too wide for a block with fewer threads.
__global__ void sum_of_a_warp_kernel(const float* x, float* out) {
  const float sum = warp_sum(x[threadIdx.x]);
  const bool is_last = __shfl_sync(0xffffffff, threadIdx.x == blockDim.x - 1, blockDim.x - 1);
  if (threadIdx.x == 0) out[0] = is_last ? sum : -1;
}
EXPORT sum_of_a_warp(const float* x, float* out, int threads, cudaStream_t stream) {
  sum_of_a_warp_kernel<<<1, threads, 0, stream>>>(x, out);
  CHECKED;
}

// What lanes of a warp, and threads of a block, tell each other. Each thread writes eight numbers.
__global__ void lanes_kernel(int* out) {
  const int lane = threadIdx.x % 32;
  unsigned active = 0;
  if (lane % 2 == 1) active = __activemask();
  int* mine = out + threadIdx.x * 8;
  mine[0] = warp_sum(lane);
  mine[1] = __ballot_sync(0xffffffff, lane % 3 == 0);
  mine[2] = __shfl_up_sync(0xffffffff, lane, 1);
  mine[3] = __shfl_sync(0xffffffff, lane, 2, 8);
  mine[4] = active;
  mine[5] = __match_any_sync(0xffffffff, lane % 4);
  mine[6] = __any_sync(0xffffffff, lane == 31) + 2 * __all_sync(0xffffffff, lane < 31) +
            4 * __reduce_max_sync(0xffffffff, lane);
  mine[7] = __syncthreads_count(lane % 2) + 1000 * __syncthreads_or(lane == 5) + 2000 * __syncthreads_and(lane < 5);
}
EXPORT lanes(int* out, int threads, cudaStream_t stream) {
  lanes_kernel<<<1, threads, 0, stream>>>(out);
  CHECKED;
}

// The same by groups: tiles of eight lanes, and the lanes that come together.
__global__ void tiles_kernel(int* out) {
  namespace cg = cooperative_groups;
  const cg::thread_block block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<8>(block);
  int* mine = out + block.thread_rank() * 4;
  mine[0] = cg::reduce(tile, static_cast<int>(tile.thread_rank()), cg::plus<int>());
  mine[1] = tile.shfl_down(static_cast<int>(threadIdx.x), 3);
  if (threadIdx.x % 4 == 0) {
    const cg::coalesced_group group = cg::coalesced_threads();
    mine[2] = group.shfl(static_cast<int>(threadIdx.x), 1) + 100 * group.num_threads();
  }
  block.sync();
  mine[3] = tile.meta_group_rank() + 10 * tile.ballot(threadIdx.x % 2);
}
EXPORT tiles(int* out, int threads, cudaStream_t stream) {
  tiles_kernel<<<1, threads, 0, stream>>>(out);
  CHECKED;
}

// Threads that leave early do not keep the others from their barrier.
__global__ void early_kernel(int* out, int n) {
  if (threadIdx.x >= n) return;
  out[threadIdx.x] = __syncthreads_count(1);
}
EXPORT early(int* out, int n, cudaStream_t stream) {
  early_kernel<<<1, 128, 0, stream>>>(out, n);
  CHECKED;
}

// Threads that take a lock in turn, also those of one block.
__global__ void lock_kernel(int* lock, int* count) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __syncwarp(1u << (threadIdx.x % 32));
  *count += 1;
  __threadfence();
  atomicExch(lock, 0);
}
EXPORT locks(int* lock, int* count, cudaStream_t stream) {
  lock_kernel<<<8, 512, 0, stream>>>(lock, count);
  CHECKED;
}

__constant__ float factors[4];
__global__ void scale_kernel(float* x, int n) { KERNEL_LOOP(i, n) x[i] *= factors[i % 4]; }
EXPORT scale(float* x, int n, const float* values) {
  cudaMemcpyToSymbol(factors, values, sizeof(factors));
  scale_kernel<<<4, 64>>>(x, n);
  CHECKED;
}

// What goes wrong.
__global__ void divergent_kernel(int* x) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}
EXPORT divergent(int* x, cudaStream_t stream) {
  divergent_kernel<<<2, 32, 0, stream>>>(x);
  CHECKED;
}
__global__ void stuck_kernel(int* x) {
  if (threadIdx.x == 3) __syncthreads();
  else __syncwarp();
}
EXPORT stuck(int* x, cudaStream_t stream) {
  stuck_kernel<<<1, 32, 0, stream>>>(x);
  CHECKED;
}
#undef NDEBUG
#include <cassert>
__global__ void asserting_kernel(const int* x, int limit) { assert(x[threadIdx.x] < limit); }
EXPORT asserting(const int* x, int limit, cudaStream_t stream) {
  asserting_kernel<<<1, 32, 0, stream>>>(x, limit);
  CHECKED;
}
__global__ void ptx_kernel(int* x) { asm volatile("mov.u32 %0, %laneid;" : "=r"(x[0])); }
EXPORT ptx(int* x, cudaStream_t stream) {
  ptx_kernel<<<1, 1, 0, stream>>>(x);
  CHECKED;
}
__global__ void nested_kernel(int* x) { early_kernel<<<1, 1>>>(x, 1); }
EXPORT nested(int* x, cudaStream_t stream) {
  nested_kernel<<<1, 1, 0, stream>>>(x);
  CHECKED;
}
EXPORT launch_of(int blocks, int threads, int shared, cudaStream_t stream) {
  early_kernel<<<blocks, threads, shared, stream>>>(nullptr, 0);
  CHECKED;
}
EXPORT allow_shared(int bytes) {
  return static_cast<int>(cudaFuncSetAttribute(early_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// A program without torch: memory, copies and events of the runtime.
EXPORT round_trip(const float* host, float* back, int n) {
  float *a = nullptr, *b = nullptr;
  cudaEvent_t begin, end;
  cudaStream_t stream;
  cudaEventCreate(&begin), cudaEventCreate(&end), cudaStreamCreate(&stream);
  cudaMalloc(&a, n * sizeof(float)), cudaMalloc((void**)&b, n * sizeof(float));
  cudaMemcpyAsync(a, host, n * sizeof(float), cudaMemcpyHostToDevice, stream);
  cudaEventRecord(begin, stream);
  mul_add_kernel<<<CEIL_DIV(n, 64), 64, 0, stream>>>(n, a, a, 1.0f, b);
  cudaEventRecord(end, stream);
  cudaStreamWaitEvent(0, end, 0);
  cudaMemcpy(back, b, n * sizeof(float), cudaMemcpyDeviceToHost);
  float milliseconds = -1;
  cudaEventSynchronize(end);
  cudaEventElapsedTime(&milliseconds, begin, end);
  cudaFree(a), cudaFree(b), cudaEventDestroy(begin), cudaEventDestroy(end), cudaStreamDestroy(stream);
  if (milliseconds < 0 || cudaFree(back) != cudaErrorInvalidValue) return -1;
  cudaGetLastError();
  CHECKED;
}
EXPORT devices() {
  int count = 0, current = -1;
  cudaDeviceProp properties;
  if (cudaGetDeviceCount(&count) || cudaGetDevice(&current) || cudaGetDeviceProperties(&properties, current)) return -1;
  if (properties.warpSize != 32 || properties.multiProcessorCount < 1) return -2;
  if (cudaSetDevice(count) != cudaErrorInvalidDevice || cudaGetLastError() != cudaErrorInvalidDevice) return -3;
  return count * 100 + properties.major * 10 + properties.minor;
}
