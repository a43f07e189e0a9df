// Time that a program adds for a while to the timeouts of a group.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc_pg/operations/outcome.hpp"

namespace vccl {

/// Holds the extensions of a group's timeouts. An extension begins with the call that adds it and ends when
/// the first operation has ended that began after the call; several add up. Thread-safe.
class ExtraTime {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds time);
  /// Returns by how much the timeout of an operation that begins now is longer.
  Milliseconds now() const { return Milliseconds(sum_.load(std::memory_order_relaxed)); }
  /// Says that `outcome` is that of an operation that has begun, after its timeout was taken from now().
  static void begin(const std::shared_ptr<ExtraTime>& extra, Outcome& outcome);

 private:
  std::mutex mutex_;
  std::vector<Milliseconds> unclaimed_;  // no operation has begun since they were added
  std::atomic<Milliseconds::rep> sum_{0};
  std::atomic<bool> any_unclaimed_{false};  // only saves time
};

}  // namespace vccl
