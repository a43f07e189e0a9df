// Memory that a failed task should have written. Reading it raises the task's failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/strided_memory.hpp"

namespace vdev {

class QueuePoints;

/// Says why a range is spoiled, and for whom. While the memory belongs to the program, everybody sees the
/// mark, and the failure stands. Once the memory was freed, only tasks see it that were enqueued before the
/// free (MemoryClock), until none of them is left.
class SpoiledMark {
 public:
  SpoiledMark(FailurePtr failure, std::uint64_t made) : failure_(std::move(failure)), made_(made) {
    failure_->spoils_.fetch_add(1);
  }
  SpoiledMark(const SpoiledMark& other)
      : failure_(other.failure_), made_(other.made_), freed_(other.freed_), tasks_(other.tasks_) {
    if (!is_freed()) failure_->spoils_.fetch_add(1);
  }
  SpoiledMark(SpoiledMark&& other) noexcept
      : failure_(std::move(other.failure_)),
        made_(other.made_),
        freed_(other.freed_),
        tasks_(std::move(other.tasks_)) {}
  SpoiledMark& operator=(SpoiledMark other) noexcept {
    std::swap(failure_, other.failure_);
    std::swap(made_, other.made_);
    std::swap(freed_, other.freed_);
    std::swap(tasks_, other.tasks_);
    return *this;
  }
  ~SpoiledMark() {
    if (failure_ && !is_freed()) failure_->spoils_.fetch_sub(1);
  }

  const FailurePtr& failure() const { return failure_; }
  /// Returns when the failed task was enqueued.
  std::uint64_t made() const { return made_; }
  bool is_freed() const { return freed_ != kNever; }
  /// Returns whether a task that was enqueued at `enqueued` sees the mark; kNever stands for the host.
  bool visible_at(std::uint64_t enqueued) const { return !is_freed() || enqueued < freed_; }
  /// Call this when the memory was freed. `tasks` are the tasks that are queued.
  void free_at(std::uint64_t when, std::shared_ptr<const QueuePoints> tasks);
  /// Returns whether the memory was freed, and every task that was enqueued before has ended.
  bool is_forgotten() const;

  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

 private:
  FailurePtr failure_;
  std::uint64_t made_;
  std::uint64_t freed_ = kNever;
  std::shared_ptr<const QueuePoints> tasks_;
};

/// Holds the spoiled address ranges of the process, on all cards and in pinned host memory. A range is
/// spoiled until it is written as a whole, it is freed, or its failure is dealt with. Thread-safe. Where a
/// function depends on who asks, it is the task that the calling thread runs, or the host.
///
/// Memory order: a task spoils its outputs before its stream counts the task as finished (a release store). A
/// reader synchronises with the stream (the acquire load that pairs with the store) before it calls any().
/// The reader therefore sees the flag behind any(), although that load is relaxed. The lock guards everything
/// else.
class SpoiledMemory {
 public:
  /// Returns whether anything is spoiled in the process. While no task has failed, code needs no other check.
  static bool any() noexcept { return any_.load(std::memory_order_relaxed); }

  /// Spoils `bytes` bytes at `begin`, unless `failure` has been dealt with. The program may have freed what a
  /// task writes, since the task was enqueued: then only tasks that were enqueued before that see it.
  void spoil(const void* begin, std::size_t bytes, const FailurePtr& failure);
  /// Returns a failure that spoils a part of the range, or null when the range may be read.
  FailurePtr find(const void* begin, std::size_t bytes);
  /// Call this when the range was written anew.
  void renew(const void* begin, std::size_t bytes);
  /// Call this when the program has freed the range, at `when` of MemoryClock. Tasks that were enqueued
  /// before still find it spoiled.
  void freed(const void* begin, std::size_t bytes, std::uint64_t when);
  /// Call this when `bytes` bytes were copied from `from` to `to`. Spoils `to` where `from` is spoiled, and
  /// renews the rest.
  void copied(const void* to, const void* from, std::size_t bytes);

  /// The next three functions do the same for the elements of a strided array, and not for the gaps between
  /// them. An array of more than kMostRuns runs is spoiled and looked at from its first element to its last,
  /// and never renewed: a needless error is better than a missing error.
  void spoil(const StridedMemory& memory, const FailurePtr& failure);
  FailurePtr find(const StridedMemory& memory);
  void renew(const StridedMemory& memory);
  static constexpr std::size_t kMostRuns = 65536;

  /// Drops the ranges whose failures have been dealt with.
  void forget_dealt_with();

 private:
  using Address = const std::byte*;
  struct Piece {
    Address end;
    std::vector<SpoiledMark> marks;  // at least one
  };
  using Pieces = std::map<Address, Piece>;  // keyed by the first address; pieces do not overlap

  friend SpoiledMemory& spoiled_memory();
  Pieces::iterator cut(Address at);
  Pieces::const_iterator first_after(Address at) const;
  void mark(Address begin, Address end, const SpoiledMark& mark);
  void spoil_locked(Address begin, Address end, const FailurePtr& failure);
  std::vector<Pieces::node_type> take_out(Address begin, Address end);
  void forget_freed(std::vector<SpoiledMark>& gone);
  template <class Forgets>
  void forget_marks(const Forgets& forgets, std::vector<SpoiledMark>& gone);
  void update_any();

  std::mutex mutex_;
  Pieces pieces_;
  bool any_freed_ = false;  // whether there may be marks of freed memory
  static inline std::atomic<bool> any_{false};
};

/// Returns the process's object. It is never destroyed, because tensors of static objects are freed after
/// main(). A forked child begins with an empty object, because it cannot use its parent's cards.
SpoiledMemory& spoiled_memory();

}  // namespace vdev
