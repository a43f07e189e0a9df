// Failures, which are raised again and again until the program has dealt with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork.hpp"

namespace vdev {

/// Returns the error epoch, which counts the errors that were raised or dealt with in this process. A call
/// that began at epoch e is concerned by every error except those that were raised or dealt with at epoch e
/// or before.
std::uint64_t error_epoch() noexcept;
/// Begins a new epoch and returns it.
std::uint64_t next_error_epoch() noexcept;

class FailureOwner;

/// Says what went wrong with one task. An exception that leaves a task is raised once. A failure is raised by
/// every synchronisation with the stream, and by every operator that reads what the task should have written
/// (spoiled_memory.hpp). FailureOwner::fail() makes failures. Thread-safe.
class Failure {
 public:
  Failure(std::exception_ptr error, std::shared_ptr<const FailureOwner> owner, bool unowned)
      : error_(std::move(error)), owner_(std::move(owner)), unowned_(unowned) {}

  const std::exception_ptr& error() const { return error_; }
  const FailureOwner* owner() const { return owner_.get(); }

  /// Returns whether a call that began at `epoch` is to raise this failure. A call that was waiting while
  /// another thread dealt with the failure still raises it, because the call's own thread cannot know of
  /// that.
  bool stands(std::uint64_t epoch) const;
  /// Returns whether the failure was dealt with after `epoch`. For a call that began at `epoch` this means:
  /// while the call was waiting.
  bool settled_since(std::uint64_t epoch) const;
  /// Returns whether the owner has dealt with the failure.
  bool dealt_with() const { return !unowned_ && settled_.load(std::memory_order_acquire) != 0; }
  /// Call this when the failure is raised for a stream. If the owner was closed before the failure was made,
  /// nobody could ever deal with the failure; this call then marks it as dealt with, so that streams raise it
  /// once.
  void raised_for_stream();

 private:
  friend class FailureOwner;
  void settle(std::uint64_t epoch);

  const std::exception_ptr error_;
  const std::shared_ptr<const FailureOwner> owner_;
  const bool unowned_;
  // The epoch at which the failure was dealt with, 0 before. The release store in settle() pairs with the
  // acquire loads in stands(), settled_since() and dealt_with().
  std::atomic<std::uint64_t> settled_{0};
};

using FailurePtr = std::shared_ptr<Failure>;

/// Owns the failures of some tasks: a process group has one. An owner is always held by a shared_ptr.
/// Thread-safe.
class FailureOwner : public std::enable_shared_from_this<FailureOwner> {
 public:
  FailurePtr fail(std::exception_ptr error);
  /// Call this when the program has dealt with everything that has failed so far. Streams no longer raise
  /// those failures, and their memory may be read. Failures that come later stand again.
  void settle() noexcept;
  /// Does what settle() does, and closes the owner. A task that fails later still spoils its memory until the
  /// memory is written anew or freed, but streams raise its failure only once.
  void close() noexcept;

 private:
  void settle_all(bool for_good) noexcept;

  const base::ProcessMark made_;  // a forked child has none of its parent's groups, so their owners do
                                  // nothing in it
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<Failure>> standing_;
};

/// Call this inside a task. Adds `failure` to the failures of the task's stream, which every later
/// synchronisation with the stream raises. The tasks behind this one still run. Does nothing outside of a
/// task.
void report_failure(FailurePtr failure);

/// Call this inside a task of which nobody knows what it reads. Returns a failure of the task's stream that
/// has not been dealt with, or that was dealt with only after the host had enqueued this task. Returns null
/// if there is none.
FailurePtr failure_before_this_task();

}  // namespace vdev
