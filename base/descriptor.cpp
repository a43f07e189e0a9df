#include "base/descriptor.hpp"

#include <unistd.h>

namespace base {

void FileDescriptor::reset() noexcept {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

}  // namespace base
