// Which host this is, and how many cores of it this process may use.
#pragma once

#include <sched.h>

#include <cstdint>
#include <span>
#include <string>

namespace vccl {

/// The kernel's boot id and the network namespace, which abstract sockets do not cross. Ranks with equal keys
/// may share memory if the proof by mapping succeeds.
std::string machine_key();

/// The process-id namespace: equal ones show the same process under the same number.
std::string pid_namespace();

/// Cores that processes may run on.
class UsableCores {
 public:
  /// This process's: the calling thread's affinity mask, and the CPU quota of its control group.
  static UsableCores of_this_process();
  /// Those of a mask, but at most `limit` at a time.
  static UsableCores of(const cpu_set_t& mask, std::int32_t limit);
  /// Also those of another process. A quota is taken to be common to both.
  void add(const UsableCores& other);
  /// Whether `other` has all of these.
  bool within(const UsableCores& other) const;
  /// At least 1.
  int count() const;

 private:
  static constexpr int kWords = 16;  // as many cores as sched_getaffinity() tells of
  std::uint64_t mask_[kWords];
  std::int32_t limit_;
};

/// All cores that one or another of these processes may run on; there is at least one process.
UsableCores all_of(std::span<const UsableCores> processes);

/// Whether processes that may run on these cores have to take turns: whether they outnumber all cores
/// together, or those of them that are bound to the cores of one, or to fewer, outnumber these.
bool are_crowded(std::span<const UsableCores> processes);

/// `bytes` random bytes from the system.
std::string random_bytes(std::size_t bytes);
/// The same in hexadecimal digits, two a byte.
std::string random_hex(std::size_t bytes);

}  // namespace vccl
