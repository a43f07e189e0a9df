#include "csrc_pg/operations/errors.hpp"

#include <c10/util/Exception.h>

namespace vccl {

void throw_torch_error(const Error& error) {
  switch (error.code()) {
    case ErrorCode::unsupported:
      C10_THROW_ERROR(NotImplementedError, error.what());
    case ErrorCode::invalid:
      C10_THROW_ERROR(ValueError, error.what());
    default:
      C10_THROW_ERROR(DistBackendError, error.what());
  }
}

std::exception_ptr torch_error(const Error& error) noexcept {
  try {
    throw_torch_error(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace vccl
