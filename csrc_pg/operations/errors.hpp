// Turns the transport's errors into torch's.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "csrc_device/runtime/interruption.hpp"
#include "csrc_device/torch/errors.hpp"
#include "transport/error.hpp"

namespace vccl {

/// Raises the torch form of `error`, with the same text: unsupported becomes NotImplementedError, invalid
/// becomes ValueError, and everything else becomes torch.distributed.DistBackendError.
[[noreturn]] void throw_torch_error(const Error& error);

/// Returns the exception that throw_torch_error() raises. Call this when another thread raises the error
/// later.
std::exception_ptr torch_error(const Error& error) noexcept;

using vdev::text_of;

/// Runs `call`. Turns an Error that leaves `call` into torch's form, or, if the calling thread was
/// interrupted during `call`, into the interruption.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    vdev::raise_interruption();
    throw_torch_error(error);
  }
}

}  // namespace vccl
