// Codes of the CUDA runtime, and the last error of a thread.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <vccl/kernels.hpp>

#include "vccl_cuda/vector_types.h"

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidSymbol = 13,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorAssert = 710,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};
typedef enum cudaError cudaError_t;
typedef struct CUstream_st* cudaStream_t;

namespace vccl_cuda VCCL_CUDA_HIDDEN {

// The text of an exception stays with its code, for the macros that make an exception of it again.
struct LastError {
  cudaError_t code = cudaSuccess;
  std::string text;
};
inline LastError& last_error() {
  static thread_local LastError error;
  return error;
}
inline cudaError_t note_error(cudaError_t code, std::string text = {}) {
  if (code != cudaSuccess) last_error() = {code, std::move(text)};
  return code;
}

inline cudaError_t code_of(const std::string& text) {
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("out of memory") || says("std::bad_alloc")) return cudaErrorMemoryAllocation;
  if (says("device-side assert")) return cudaErrorAssert;
  if (says("no stream at")) return cudaErrorInvalidResourceHandle;
  return cudaErrorLaunchFailure;
}

// Calls something of vccl's, and returns a code in the place of what it throws.
template <class Call>
cudaError_t noting_errors(const Call& call) {
  try {
    call();
    return cudaSuccess;
  } catch (const std::exception& error) {
    return note_error(code_of(error.what()), error.what());
  }
}

}  // namespace vccl_cuda
