// What the thread sanitizer cannot see, in every executable that throws exceptions from one thread to
// another.
#pragma once

#if defined(__SANITIZE_THREAD__)
// The reference count of exception objects lives in libstdc++.so, which is not instrumented: that a thread
// drops its last use before another frees the object is not seen.
extern "C" __attribute__((used, visibility("default"))) inline const char* __tsan_default_suppressions() {
  return "race:std::runtime_error::~runtime_error\nrace:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif
