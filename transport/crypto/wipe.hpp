// Overwrites secrets that are not needed any more.
#pragma once

#include <string.h>

#include <string>

namespace vccl {

/// Overwrites the text and makes it empty. The compiler does not leave this out.
inline void wipe(std::string& secret) noexcept {
  explicit_bzero(secret.data(), secret.size());
  secret.clear();
}

}  // namespace vccl
