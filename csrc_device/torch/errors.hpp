// The runtime's exceptions as torch's.
#pragma once

#include <utility>

#include <c10/util/Exception.h>

#include "csrc_device/runtime/error.hpp"

namespace vdev {

/// Runs `call` and turns OutOfMemory into torch.OutOfMemoryError. Every other runtime error is a
/// std::runtime_error, which torch's bindings already turn into RuntimeError with its text unchanged, so it
/// passes through.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

}  // namespace vdev
