#include "base/thread_waits.hpp"

namespace base {
namespace {

// Relaxed: only the thread itself writes, and readers conclude nothing about other memory.
constinit thread_local std::atomic<int> marks{0};

void add(int change) noexcept {
  marks.store(marks.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
}

}  // namespace

ThreadWaits::ThreadWaits() noexcept {
  add(1);
}

ThreadWaits::~ThreadWaits() {
  add(-1);
}

const std::atomic<int>& ThreadWaits::of_this_thread() noexcept {
  return marks;
}

}  // namespace base
