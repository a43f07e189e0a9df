// Turns the runtime's exceptions into torch's.
#pragma once

#include <exception>
#include <string>
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

/// Returns the text of an exception, without torch's backtrace.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace vdev
