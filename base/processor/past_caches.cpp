#include "base/past_caches.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace base {

namespace {

#if defined(__x86_64__)

// Copies whole lines. `bytes` is a multiple of kLineBytes.
using CopyLines = void (*)(char* to, const char* from, std::size_t bytes);

void copy_lines(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLineBytes) {
    const auto* line = reinterpret_cast<const __m128i*>(from + at);
    auto* to_line = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(to_line, a);
    _mm_stream_si128(to_line + 1, b);
    _mm_stream_si128(to_line + 2, c);
    _mm_stream_si128(to_line + 3, d);
  }
}

// With half as many instructions for a line, the core runs ahead over more lines.
__attribute__((target("avx2"))) void copy_lines_avx2(char* to, const char* from, std::size_t bytes) {
#pragma GCC unroll 2
  for (std::size_t at = 0; at < bytes; at += kLineBytes) {
    const auto* line = reinterpret_cast<const __m256i*>(from + at);
    auto* to_line = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(line), b = _mm256_loadu_si256(line + 1);
    _mm256_stream_si256(to_line, a);
    _mm256_stream_si256(to_line + 1, b);
  }
}

CopyLines widest() {
  // This may run before main(), so the processor's features must be initialized first.
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") ? copy_lines_avx2 : copy_lines;
}

#endif

}  // namespace

std::size_t bytes_to_line(const void* at) noexcept {
  return -reinterpret_cast<std::uintptr_t>(at) % kLineBytes;
}

void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if constexpr (kStreamingStores) {
    static const CopyLines copy = widest();
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    // Only whole lines bypass the caches. Usually there is nothing else, and the memcpy() calls are short.
    const std::size_t head = std::min(bytes_to_line(to), bytes),
                      lines = (bytes - head) / kLineBytes * kLineBytes;
    if (head > 0) std::memcpy(out, in, head);
    copy(out + head, in + head, lines);
    if (const std::size_t done = head + lines; done < bytes) std::memcpy(out + done, in + done, bytes - done);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void finish_stores() noexcept {
#if defined(__x86_64__)
  // A release store does not order streaming stores before itself: without a fence, a peer could see the flag
  // first.
  if constexpr (kStreamingStores) _mm_sfence();
#endif
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes < kLeastPastCaches) {
    std::memcpy(to, from, bytes);
    return;
  }
  store_past_caches(to, from, bytes);
  finish_stores();
}

}  // namespace base
