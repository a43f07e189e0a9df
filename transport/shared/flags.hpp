// Flags in the control memory: how a rank sets one, and how it wakes the rank that waits for it.
#pragma once

#include <atomic>

#include "transport/shared/control_memory.hpp"
#include "transport/shared/host_group.hpp"

namespace vccl {

// How a flag and its sleepers work together: the waker stores the flag and then reads the number of sleepers.
// The sleeper increments the number of sleepers and then reads the flag. If either pair were reordered (a
// later load before a store, which even x86 does), both ranks could miss each other, and the sleeper would
// not be woken. Hence all four accesses are sequentially consistent. They also pair as release and acquire: a
// rank that has read the flag's new value sees everything that was written before publish().

/// Wakes the rank that owns `line`, if that rank sleeps.
void wake_sleepers(RankLine& line) noexcept;
inline void wake(RankLine& line) noexcept {
  if (line.sleepers.load() != 0) wake_sleepers(line);
}

/// Wakes those other ranks of this host that sleep.
void wake_others(const HostGroup& host) noexcept;

/// Reads a flag in the condition of a wait.
template <class T>
T read(const std::atomic<T>& flag) {
  return flag.load();
}

/// Sets a flag for which only the rank that owns `reader` waits, and wakes that rank.
template <class T>
void publish(std::atomic<T>& flag, T value, RankLine& reader) {
  flag.store(value);
  wake(reader);
}

/// Publishes to the peers which core the calling thread runs on.
void announce_core(RankLine& own) noexcept;

}  // namespace vccl
