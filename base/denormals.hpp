// Whether the calling thread flushes denormal floats, as torch.set_flush_denormal() has it.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace base {

/// The bits of the processor's control register that flush denormals: on x86 "flush to zero" and "denormals
/// are zero", on arm64 FZ, which does both. 0 where the processor has no such bits.
#if defined(__SSE__)
inline constexpr std::uint64_t kFlushDenormals = 0x8040;
#elif defined(__aarch64__)
inline constexpr std::uint64_t kFlushDenormals = std::uint64_t{1} << 24;
#else
inline constexpr std::uint64_t kFlushDenormals = 0;
#endif

/// Returns those of the bits that are set for the calling thread.
inline std::uint64_t denormal_mode() noexcept {
#if defined(__SSE__)
  return _mm_getcsr() & kFlushDenormals;
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control & kFlushDenormals;
#else
  return 0;
#endif
}

/// Sets the bits for the calling thread to what denormal_mode() has returned, or to kFlushDenormals. A write
/// of the register waits for all arithmetic under way, so an equal mode is not written.
inline void set_denormal_mode(std::uint64_t mode) noexcept {
  if (denormal_mode() == mode) return;
#if defined(__SSE__)
  _mm_setcsr((_mm_getcsr() & ~static_cast<unsigned>(kFlushDenormals)) | static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  // The memory clobber keeps the compiler from moving loads and stores across, and with them most arithmetic.
  asm volatile("msr fpcr, %0" : : "r"((control & ~kFlushDenormals) | mode) : "memory");
#endif
}

}  // namespace base
