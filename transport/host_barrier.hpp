// A barrier of the processes of one host, for measurements.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "transport/deadline.hpp"

namespace vccl {

/// Lets processes that map the same memory go at the same moment, and costs those who come early, or late,
/// as little of the cores as it can: the last one wakes the others with one call, and a sleeper's way back is
/// a few instructions.
class HostBarrier {
 public:
  /// What the processes share; zero at first.
  struct Words {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> turn;  // futex word: how often everybody has arrived
  };

  HostBarrier(Words& words, int size) : words_(words), size_(static_cast<std::uint32_t>(size)) {}

  /// Says that this process has come. Returns the turn that it waits for the end of.
  std::uint32_t arrive() noexcept;
  /// Returns whether everybody has come. Looks at the word for `look`, and sleeps then until `deadline`.
  bool await(std::uint32_t turn, std::chrono::nanoseconds look, Clock::time_point deadline) const noexcept;

 private:
  Words& words_;
  const std::uint32_t size_;
};

}  // namespace vccl
