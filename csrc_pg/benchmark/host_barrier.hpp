// A barrier for the processes of one host, for measurements.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "transport/deadline.hpp"

namespace vccl {

/// Releases processes that map the same memory at the same moment. Processes that come early or late use as
/// little of the cores as possible: the last process wakes the others with one system call, and a woken
/// process returns after a few instructions.
class HostBarrier {
 public:
  /// The memory that the processes share. All of it must be zero at first.
  struct Words {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> turn;  // futex word: how often all processes have arrived
  };

  HostBarrier(Words& words, int size) : words_(words), size_(static_cast<std::uint32_t>(size)) {}

  /// Announces that this process has arrived. Returns the turn for await().
  std::uint32_t arrive() noexcept;
  /// Blocks until all processes have arrived. Spins on the word for `look`, and then sleeps until `deadline`.
  /// Returns whether all processes have arrived.
  bool await(std::uint32_t turn, std::chrono::nanoseconds look, Clock::time_point deadline) const noexcept;

 private:
  Words& words_;
  const std::uint32_t size_;
};

}  // namespace vccl
