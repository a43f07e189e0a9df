#include "csrc_device/runtime/memory/first_use.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "csrc_device/runtime/environment.hpp"

namespace vdev {

void note_first_use() noexcept {
  // The order is relaxed, because nothing is read that another thread has written. exchange() lets only one
  // thread make the file.
  static std::atomic<bool> noted{false};
  if (noted.exchange(true, std::memory_order_relaxed)) return;
  try {
    const auto& path = environment().first_use_file;
    if (path.empty()) return;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600);
    if (fd >= 0) ::close(fd);
  } catch (...) {
    // If a VDEV_* variable is bad, the next call of card() raises the error.
  }
}

}  // namespace vdev
