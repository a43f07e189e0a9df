// Unnamed shared memory, which processes hand to each other as a file descriptor.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <string>
#include <system_error>
#include <utility>

#include "base/descriptor.hpp"

namespace base {

/// The seals of every file that make_sealed_memory() makes. They keep every holder of the descriptor from
/// shrinking the file, which would make another process's accesses fault.
inline constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Reports a system call that failed. code() is its errno, and `call` says what failed.
struct SystemError : std::system_error {
  SystemError(std::string what, int code)
      : std::system_error(code, std::generic_category(), what), call(std::move(what)) {}
  std::string call;
};

/// Returns a memfd of `size` zero bytes that has the seals kSeals. /proc shows `name`. Throws SystemError.
FileDescriptor make_sealed_memory(const char* name, std::size_t size);

}  // namespace base
