// The functions of the CUDA runtime.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "vccl_cuda/errors.h"

#define CUDART_VERSION 12080
#define CUDART_CB

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
typedef ::vdev::cuda::Event* cudaEvent_t;

inline constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor, multiProcessorCount, regsPerBlock;
  int maxThreadsDim[3], maxGridSize[3];
  int major, minor;
  int l2CacheSize, concurrentKernels, integrated, canMapHostMemory;
};

namespace vccl_cuda VCCL_CUDA_HIDDEN {
inline constexpr std::size_t kSharedByDefault = std::size_t{48} << 10;
inline constexpr std::size_t kSharedAtMost = std::size_t{227} << 10;  // that any GPU gives to a block
void allow_shared(std::size_t bytes);

inline cudaError_t check_card(int card) {
  const bool is_there = card >= 0 && card < vdev::cuda::card_count();
  return is_there ? cudaSuccess : note_error(cudaErrorInvalidDevice);
}
}  // namespace vccl_cuda

// Errors.
inline cudaError_t cudaGetLastError() {
  const cudaError_t code = ::vccl_cuda::last_error().code;
  ::vccl_cuda::last_error().code = cudaSuccess;
  return code;
}
inline cudaError_t cudaPeekAtLastError() {
  return ::vccl_cuda::last_error().code;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidSymbol: return "invalid device symbol";
    case cudaErrorInvalidMemcpyDirection: return "invalid copy direction for memcpy";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorUnknown: return "unknown error";
  }
  return "unrecognized error code";
}
inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorAssert: return "cudaErrorAssert";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}

// Devices.
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = vdev::cuda::card_count();
  return *count > 0 ? cudaSuccess : ::vccl_cuda::note_error(cudaErrorNoDevice);
}
inline cudaError_t cudaGetDevice(int* card) {
  *card = vdev::cuda::current_card();
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int card) {
  if (const cudaError_t wrong = ::vccl_cuda::check_card(card)) return wrong;
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::set_current_card(card); });
}
inline cudaError_t cudaDeviceSynchronize() {
  return ::vccl_cuda::noting_errors([] { vdev::cuda::synchronize_card(); });
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int card) {
  if (const cudaError_t wrong = ::vccl_cuda::check_card(card)) return wrong;
  return ::vccl_cuda::noting_errors([&] {
    const auto figures = vdev::cuda::figures(card);
    *properties = cudaDeviceProp{};
    std::memcpy(properties->name, figures.name, sizeof figures.name);
    properties->totalGlobalMem = figures.memory;
    properties->sharedMemPerBlock = ::vccl_cuda::kSharedByDefault;
    properties->sharedMemPerBlockOptin = properties->sharedMemPerMultiprocessor = ::vccl_cuda::kSharedAtMost;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->multiProcessorCount = figures.multiprocessors;
    properties->regsPerBlock = 65536;
    const int threads[3] = {1024, 1024, 64}, blocks[3] = {2147483647, 65535, 65535};
    std::memcpy(properties->maxThreadsDim, threads, sizeof threads);
    std::memcpy(properties->maxGridSize, blocks, sizeof blocks);
    properties->major = figures.major;
    properties->minor = figures.minor;
    properties->l2CacheSize = 4 << 20;
    properties->concurrentKernels = properties->canMapHostMemory = 1;
  });
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int card) {
  cudaDeviceProp properties;
  if (const cudaError_t wrong = cudaGetDeviceProperties(&properties, card)) return wrong;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(properties.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default: return ::vccl_cuda::note_error(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// Memory.
template <class T>
cudaError_t cudaMalloc(T** memory, std::size_t bytes) {
  return ::vccl_cuda::noting_errors([&] { *memory = static_cast<T*>(vdev::cuda::allocate(bytes)); });
}
inline cudaError_t cudaFree(void* memory) {
  bool is_known = true;
  const cudaError_t error = ::vccl_cuda::noting_errors([&] { is_known = vdev::cuda::release(memory); });
  return is_known ? error : ::vccl_cuda::note_error(cudaErrorInvalidValue);
}
inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return ::vccl_cuda::noting_errors([&] {
    const auto figures = vdev::cuda::figures(vdev::cuda::current_card());
    *free = figures.free_memory;
    *total = figures.memory;
  });
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream = nullptr) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::copy(to, from, bytes, stream, false); });
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::copy(to, from, bytes, nullptr, true); });
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream = nullptr) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::fill(to, byte, bytes, stream); });
}
inline cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return cudaMemsetAsync(to, byte, bytes);
}
// __constant__ and __device__ variables are the process's, and not one for each card. A copy waits for what
// may use them.
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, std::size_t bytes, std::size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset + bytes > sizeof(T)) return ::vccl_cuda::note_error(cudaErrorInvalidValue);
  const cudaError_t error = cudaDeviceSynchronize();
  auto* const to = const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset;
  return error ? error : cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, std::size_t bytes, std::size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  if (offset + bytes > sizeof(T)) return ::vccl_cuda::note_error(cudaErrorInvalidValue);
  const cudaError_t error = cudaDeviceSynchronize();
  const auto* const from = const_cast<const char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset;
  return error ? error : cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
template <class T>
cudaError_t cudaGetSymbolAddress(void** address, T& symbol) {
  *address = const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol));
  return cudaSuccess;
}

// Streams and events.
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return ::vccl_cuda::noting_errors(
      [&] { *stream = static_cast<cudaStream_t>(vdev::cuda::pool_stream(priority < 0 ? -1 : 0)); });
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;  // it is one of torch's, which stay
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::synchronize(stream); });
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  bool is_idle = false;
  const cudaError_t error = ::vccl_cuda::noting_errors([&] { is_idle = vdev::cuda::is_idle(stream); });
  return error || is_idle ? error : cudaErrorNotReady;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return ::vccl_cuda::noting_errors(
      [&] { *event = vdev::cuda::make_event((flags & cudaEventDisableTiming) == 0); });
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::forget(event); });
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::record(*event, stream); });
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::wait(stream, *event); });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return ::vccl_cuda::noting_errors([&] { vdev::cuda::synchronize(*event); });
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool is_reached = false;
  const cudaError_t error = ::vccl_cuda::noting_errors([&] { is_reached = vdev::cuda::is_reached(*event); });
  return error || is_reached ? error : cudaErrorNotReady;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return ::vccl_cuda::noting_errors(
      [&] { *milliseconds = static_cast<float>(vdev::cuda::milliseconds(*begin, *end)); });
}

// Kernels.
template <class Function>
cudaError_t cudaFuncSetAttribute(Function*, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > ::vccl_cuda::kSharedAtMost)
    return ::vccl_cuda::note_error(cudaErrorInvalidValue);
#ifdef __CUDACC__
  ::vccl_cuda::allow_shared(static_cast<std::size_t>(value));
#endif
  return cudaSuccess;
}
template <class Function>
cudaError_t cudaFuncSetCacheConfig(Function*, cudaFuncCache) {
  return cudaSuccess;
}
// A card has no registers to run out of: as many blocks fit as threads allow.
template <class Function>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int block_size, std::size_t) {
  if (block_size <= 0) return ::vccl_cuda::note_error(cudaErrorInvalidValue);
  *blocks = 2048 / block_size < 32 ? 2048 / block_size : 32;
  return cudaSuccess;
}
template <class Function>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* least_grid, int* block_size, Function*, std::size_t = 0,
                                               int most = 0) {
  *block_size = most > 0 && most < 1024 ? most : 1024;
  return ::vccl_cuda::noting_errors(
      [&] { *least_grid = vdev::cuda::figures(vdev::cuda::current_card()).multiprocessors * 2; });
}
