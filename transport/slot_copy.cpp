#include "transport/slot_copy.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/past_caches.hpp"

namespace vccl {

namespace {

using Time = std::chrono::steady_clock;

// This is below the rate of copies within a core's caches or from memory, and above the rate of stores to
// lines that another core's cache has.
constexpr double kSlowBytesPerNanosecond = 3;
// How many bytes are copied between two reads of the clock, and how many slow measurements in a row are
// needed. One may be slow because the thread was not running.
constexpr std::size_t kObservedBytes = 16 * 1024;
constexpr int kSlowLooks = 3;
// How many bytes are streamed before plain stores are tried again. If plain stores are still slow, the trial
// costs a fiftieth.
constexpr std::size_t kStreamedBytes = 16 * 1024 * 1024;

/// What one thread has measured of its copies.
class Observer {
 public:
  void copy(char* to, const char* from, std::size_t bytes) {
    std::size_t done = 0;
    for (auto before = Time::now(); left_ == 0 && done < bytes;) {
      const std::size_t now = std::min(kObservedBytes, bytes - done);
      std::memcpy(to + done, from + done, now);
      done += now;
      const auto after = Time::now();
      if (now >= base::kLeastPastCaches) look(now, after - before);
      before = after;
    }
    if (done == bytes) return;
    base::copy_past_caches(to + done, from + done, bytes - done);
    left_ -= std::min(left_, bytes - done);
  }

 private:
  void look(std::size_t bytes, std::chrono::duration<double, std::nano> length) {
    slow_ = double(bytes) < kSlowBytesPerNanosecond * length.count() ? slow_ + 1 : 0;
    if (slow_ < kSlowLooks) return;
    slow_ = 0;
    left_ = kStreamedBytes;
  }

  int slow_ = 0;          // slow measurements in a row
  std::size_t left_ = 0;  // bytes to stream before the next trial of plain stores
};

}  // namespace

void copy_to_slot(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < base::kLeastPastCaches) {
    std::memcpy(to, from, bytes);
    return;
  }
  thread_local Observer observer;
  observer.copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
}

}  // namespace vccl
