// Sleeping on a word of shared memory until another process wakes the sleepers.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace vccl {

/// Sleeps until the word is woken, for `time` at most; not at all where it does not hold `value`. May return
/// early, after a signal for instance.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                std::chrono::nanoseconds time) noexcept;
void futex_wake(std::atomic<std::uint32_t>& word, int sleepers = INT_MAX) noexcept;

}  // namespace vccl
