// Turns the runtime's exceptions into torch's.
#pragma once

#include <cstdint>
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

/// Raises torch.AcceleratorError, whose error_code is `code`, a cudaError_t.
[[noreturn]] inline void raise_accelerator_error(std::int32_t code, const std::string& text) {
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, code, text);
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
