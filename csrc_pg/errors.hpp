// The transport's errors as torch's, in one place.
#pragma once

#include <exception>
#include <utility>

#include "transport/error.hpp"

namespace vccl {

/// Raises the torch form of `error`, text unchanged:
///   unsupported -> NotImplementedError, invalid -> ValueError, everything else ->
///   torch.distributed.DistBackendError.
[[noreturn]] void throw_torch_error(const Error& error);

/// The same as an object, for what runs on a stream and is raised later by somebody else.
std::exception_ptr torch_error(const Error& error) noexcept;

/// Runs `call` and turns an Error that leaves it into torch's.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    throw_torch_error(error);
  }
}

}  // namespace vccl
