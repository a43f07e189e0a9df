// Turns the runtime's exceptions into torch's.
#pragma once

#include <utility>

#include <c10/util/Exception.h>

#include "csrc_device/runtime/error.hpp"

namespace vdev {

/// Runs `call` and turns OutOfMemory into torch.OutOfMemoryError. Every other error of the runtime is a
/// std::runtime_error and passes through, because torch's bindings turn it into RuntimeError with the same
/// text.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

}  // namespace vdev
