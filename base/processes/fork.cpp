#include "base/fork.hpp"

#include <pthread.h>

#include <atomic>

namespace base {
namespace {

// Only the child of a fork writes this, while the child has a single thread, so relaxed accesses are enough.
std::atomic<int> generation{0};

void count_fork() {
  generation.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

int fork_generation() noexcept {
  static const bool installed = ::pthread_atfork(nullptr, nullptr, &count_fork) == 0;
  (void)installed;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace base
