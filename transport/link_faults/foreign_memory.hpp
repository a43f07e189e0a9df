// Memory that a library without the thread sanitizer hands to our functions.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace vccl::link_faults {

/// While such an object lives, the thread sanitizer does not look at this thread's accesses. Use it only
/// around an access to what libzmq has handed over: the sanitizer does not see how libzmq orders that, and
/// would find a race in each piece. A race that a suppression then hides still costs milliseconds, and more
/// the more there were, so that heartbeats came too late.
class ForeignMemory {
 public:
#if defined(__SANITIZE_THREAD__)
  ForeignMemory() noexcept { __tsan_ignore_thread_begin(); }
  ~ForeignMemory() { __tsan_ignore_thread_end(); }
#else
  ForeignMemory() noexcept {}
  ~ForeignMemory() {}
#endif
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;
};

}  // namespace vccl::link_faults
