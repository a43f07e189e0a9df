// How many cores of the machine a set of processes may use.
#pragma once

#include <sched.h>

#include <cstdint>
#include <span>

namespace base {

/// The set of cores that one or more processes may run on, and how many of them they may use at a time.
class UsableCores {
 public:
  /// Returns the cores of this process: the calling thread's affinity mask, limited by the CPU quota of the
  /// process's control group.
  static UsableCores of_this_process();
  /// Returns the cores of `mask`, of which at most `limit` may be used at a time.
  static UsableCores of(const cpu_set_t& mask, std::int32_t limit);
  /// Adds the cores of another process. A CPU quota counts as shared by both processes.
  void add(const UsableCores& other);
  /// Returns whether every core of this set is also in `other`.
  bool within(const UsableCores& other) const;
  /// Returns the number of cores that may be used at a time, at least 1.
  int count() const;

 private:
  static constexpr int kWords = 16;  // sched_getaffinity() reports as many cores as cpu_set_t has bits
  std::uint64_t mask_[kWords];
  std::int32_t limit_;
};

/// Returns the cores that at least one of `processes` may run on. `processes` must not be empty.
UsableCores all_of(std::span<const UsableCores> processes);

/// Returns whether the processes have to take turns on their cores. This is so when all of them outnumber the
/// cores that they have together. It is also so when, for one of the processes, the processes that are bound
/// to its cores or to a part of them outnumber its cores.
bool are_oversubscribed(std::span<const UsableCores> processes);

}  // namespace base
