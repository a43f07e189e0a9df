// The instruction that a spinning loop executes between two reads of a flag.
#pragma once

#include <thread>

namespace base {

/// Tells the processor that the calling thread spins, so that the core's other hardware thread runs faster.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

}  // namespace base
