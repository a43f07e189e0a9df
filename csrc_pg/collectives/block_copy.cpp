#include "csrc_pg/collectives/block_copy.hpp"

#include <cstdint>
#include <cstring>

// Sanitizers do not see streaming stores.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VCCL_STREAMING_STORES
#include <emmintrin.h>
#endif

namespace vccl {

#ifdef VCCL_STREAMING_STORES

namespace {
constexpr std::size_t kLine = 64;
constexpr std::size_t kLeastStreamed = 4096;
}  // namespace

void copy_over_shared(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < kLeastStreamed) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // Only whole lines are worth streaming.
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine;
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
  // Streaming stores are not ordered by a release store: the neighbour could see the flag first.
  _mm_sfence();
}

#else

void copy_over_shared(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace vccl
