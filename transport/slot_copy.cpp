#include "transport/slot_copy.hpp"

#include <cstdint>
#include <cstring>

// Sanitizers do not see streaming stores.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VCCL_STREAMING_STORES
#include <emmintrin.h>

#include <algorithm>
#include <chrono>
#endif

namespace vccl {

#ifdef VCCL_STREAMING_STORES

namespace {

using Time = std::chrono::steady_clock;

constexpr std::size_t kLine = 64;
// Shorter copies are neither streamed nor worth a look at the clock.
constexpr std::size_t kLeast = 4096;
// Below what a core copies within its caches or from memory, above what it stores to lines that another
// core's cache has.
constexpr double kSlowBytesPerNanosecond = 3;
// How much is copied between two looks at the clock, and how many slow looks in a row it takes: one may be
// slow because the thread was off its core.
constexpr std::size_t kObservedBytes = 16 * 1024;
constexpr int kSlowLooks = 3;
// Streamed before plain stores are tried again, which costs a fiftieth where they are slow still.
constexpr std::size_t kStreamedBytes = 16 * 1024 * 1024;

/// What one thread has seen of its copies.
class Observer {
 public:
  void copy(char* to, const char* from, std::size_t bytes) {
    std::size_t done = 0;
    for (auto before = Time::now(); left_ == 0 && done < bytes;) {
      const std::size_t now = std::min(kObservedBytes, bytes - done);
      std::memcpy(to + done, from + done, now);
      done += now;
      const auto after = Time::now();
      if (now >= kLeast) look(now, after - before);
      before = after;
    }
    if (done == bytes) return;
    copy_past_caches(to + done, from + done, bytes - done);
    left_ -= std::min(left_, bytes - done);
  }

 private:
  void look(std::size_t bytes, std::chrono::duration<double, std::nano> length) {
    slow_ = double(bytes) < kSlowBytesPerNanosecond * length.count() ? slow_ + 1 : 0;
    if (slow_ < kSlowLooks) return;
    slow_ = 0;
    left_ = kStreamedBytes;
  }

  int slow_ = 0;          // looks in a row
  std::size_t left_ = 0;  // to be streamed before the next trial
};

}  // namespace

void copy_past_caches(void* out, const void* in, std::size_t bytes) noexcept {
  auto* to = static_cast<char*>(out);
  const auto* from = static_cast<const char*>(in);
  // Only whole lines are worth streaming.
  const std::size_t head = std::min((kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine, bytes);
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(from + done);
    auto* to_line = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(to_line, a);
    _mm_stream_si128(to_line + 1, b);
    _mm_stream_si128(to_line + 2, c);
    _mm_stream_si128(to_line + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
  // Streaming stores are not ordered by a release store: the peer could see the flag first.
  _mm_sfence();
}

void copy_to_slot(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < kLeast) {
    std::memcpy(to, from, bytes);
    return;
  }
  thread_local Observer observer;
  observer.copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
}

#else

void copy_to_slot(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace vccl
