// Locks on single bytes of a file that several processes have open.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace base {

/// Changes this process's lock (F_RDLCK, F_WRLCK, F_UNLCK) on one byte of the file, without waiting. Returns
/// false if another process has a lock that excludes it.
///
/// The lock belongs to the process (F_SETLK), not to the open file (F_OFD_SETLK): a forked child would keep
/// the file's lock when its parent is gone. The process's locks on the file go with any descriptor of it that
/// the process closes, so nothing else may open the file.
inline bool lock_byte(int file, std::size_t byte, int type) noexcept {
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
