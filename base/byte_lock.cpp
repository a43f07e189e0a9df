#include "base/byte_lock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace base {

bool lock_byte(int file, std::size_t byte, int type) noexcept {
  struct flock range{};
  range.l_type = static_cast<short>(type);
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(byte);
  range.l_len = 1;
  int result;
  do {
    result = ::fcntl(file, F_SETLK, &range);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace base
