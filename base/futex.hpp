// Sleeping on a word of shared memory until another process wakes the sleepers.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace base {

/// Sleeps for at most `time`, until futex_wake() is called on the word. Returns at once if the word does not
/// hold `value`. May also return early, for instance after a signal.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                std::chrono::nanoseconds time) noexcept;
void futex_wake(std::atomic<std::uint32_t>& word, int sleepers = INT_MAX) noexcept;

}  // namespace base
