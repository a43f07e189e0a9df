// Memory that a failed task should have written. Reading it raises the task's failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/strided_memory.hpp"

namespace vdev {

/// Holds the spoiled address ranges of the process, on all cards and in pinned host memory. A range is
/// spoiled until it is written as a whole, it is freed, or its failure is dealt with. Thread-safe.
///
/// Memory order: a task spoils its outputs before its stream counts the task as finished (a release store). A
/// reader synchronises with the stream (the acquire load that pairs with the store) before it calls any().
/// The reader therefore sees the flag behind any(), although that load is relaxed. The lock guards everything
/// else.
class SpoiledMemory {
 public:
  /// Returns whether anything is spoiled in the process. While no task has failed, code needs no other check.
  static bool any() noexcept { return any_.load(std::memory_order_relaxed); }

  /// Spoils `bytes` bytes at `begin`, unless `failure` has been dealt with.
  void spoil(const void* begin, std::size_t bytes, const FailurePtr& failure);
  /// Returns a failure that spoils a part of the range, or null when the range may be read.
  FailurePtr find(const void* begin, std::size_t bytes) const;
  /// Call this when the range was written anew, or freed.
  void renew(const void* begin, std::size_t bytes);
  /// Call this when `bytes` bytes were copied from `from` to `to`. Spoils `to` where `from` is spoiled, and
  /// renews the rest.
  void copied(const void* to, const void* from, std::size_t bytes);

  /// The next three functions do the same for the elements of a strided array, and not for the gaps between
  /// them. An array of more than kMostRuns runs is spoiled and looked at from its first element to its last,
  /// and never renewed: a needless error is better than a missing one.
  void spoil(const StridedMemory& memory, const FailurePtr& failure);
  FailurePtr find(const StridedMemory& memory) const;
  void renew(const StridedMemory& memory);
  static constexpr std::size_t kMostRuns = 65536;

  /// Drops the ranges whose failures have been dealt with.
  void forget_dealt_with();

 private:
  using Address = const std::byte*;
  struct Piece {
    Address end;
    std::vector<FailurePtr> failures;  // one for each owner, at least one
  };
  using Pieces = std::map<Address, Piece>;  // keyed by the first address; pieces do not overlap

  friend SpoiledMemory& spoiled_memory();
  Pieces::iterator cut(Address at);
  Pieces::const_iterator first_after(Address at) const;
  void spoil_locked(Address begin, Address end, const FailurePtr& failure);
  std::vector<Pieces::node_type> take_out(Address begin, Address end);
  void update_any();

  mutable std::mutex mutex_;
  Pieces pieces_;
  static inline std::atomic<bool> any_{false};
};

/// Returns the process's object. It is never destroyed, because tensors of static objects are freed after
/// main(). A forked child begins with an empty one, because it cannot use its parent's cards.
SpoiledMemory& spoiled_memory();

}  // namespace vdev
