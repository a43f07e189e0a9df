#include "transport/past_caches.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Sanitizers do not see streaming stores.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VCCL_STREAMING_STORES
#include <emmintrin.h>
#endif

namespace vccl {

namespace {
constexpr std::size_t kLine = 64;
}

std::size_t bytes_to_line(const void* at) noexcept {
  return -reinterpret_cast<std::uintptr_t>(at) % kLine;
}

#ifdef VCCL_STREAMING_STORES

void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // Only whole lines are worth streaming.
  const std::size_t head = std::min(bytes_to_line(to), bytes);
  std::memcpy(out, in, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(in + done);
    auto* to_line = reinterpret_cast<__m128i*>(out + done);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(to_line, a);
    _mm_stream_si128(to_line + 1, b);
    _mm_stream_si128(to_line + 2, c);
    _mm_stream_si128(to_line + 3, d);
  }
  std::memcpy(out + done, in + done, bytes - done);
}

void finish_stores() noexcept {
  // Streaming stores are not ordered by a release store: the neighbour could see the flag first.
  _mm_sfence();
}

#else

void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

void finish_stores() noexcept {}

#endif

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < kLeastPastCaches) {
    std::memcpy(to, from, bytes);
    return;
  }
  store_past_caches(to, from, bytes);
  finish_stores();
}

}  // namespace vccl
