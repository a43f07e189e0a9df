// Failures, which are raised again and again until nothing depends on them, or the program has dealt with
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork.hpp"

namespace vdev {

/// Returns the error epoch, which counts how often failures were dealt with in this process. A call that
/// began at epoch e is concerned by every failure except those that were dealt with at epoch e or before.
std::uint64_t error_epoch() noexcept;
/// Begins a new epoch and returns it.
std::uint64_t next_error_epoch() noexcept;

class FailureOwner;

/// Says how long a failure stands, unless its owner deals with it before.
enum class Stands : std::uint8_t {
  kWhileItSpoils,   // until it was raised once, and spoils no memory of the program any more
  kUntilDealtWith,  // until its owner deals with it
};

/// Says what went wrong with one task. It is raised by every synchronisation with the stream, and by every
/// operator that reads what the task should have written (spoiled_memory.hpp). FailureOwner makes failures.
/// Thread-safe.
class Failure {
 public:
  Failure(std::exception_ptr error, std::shared_ptr<FailureOwner> owner, Stands stands, bool blocks,
          bool unowned)
      : error_(std::move(error)),
        owner_(std::move(owner)),
        stands_(stands),
        blocks_(blocks),
        unowned_(unowned) {}

  const std::exception_ptr& error() const { return error_; }
  const std::shared_ptr<FailureOwner>& owner() const { return owner_; }

  /// Returns whether a call that began at `epoch` is to raise this failure. A call that was waiting while
  /// another thread dealt with the failure still raises it, because the call's own thread cannot know of
  /// that.
  bool stands(std::uint64_t epoch) const;
  /// Returns whether the failure was dealt with after `epoch`. For a call that began at `epoch` this means:
  /// while the call was waiting.
  bool settled_since(std::uint64_t epoch) const;
  /// Returns whether the owner has dealt with the failure.
  bool dealt_with() const { return !unowned_ && settled_.load(std::memory_order_acquire) != 0; }
  /// Returns whether the tasks behind the failed one are given up, because it is not known what it should
  /// have written.
  bool blocks() const { return blocks_; }

  bool waits_to_be_dealt_with() const { return stands_ == Stands::kUntilDealtWith; }
  /// Returns whether a stream that has `other` need not have this failure, too.
  bool adds_nothing_to(const Failure& other) const {
    return this == &other || (waits_to_be_dealt_with() && owner_ == other.owner_ &&
                              stands_ == other.stands_ && blocks_ == other.blocks_);
  }

  /// Returns whether nobody has raised the failure yet, and counts it as raised.
  bool claim() { return !raised_.exchange(true); }
  bool raised() const { return raised_.load(); }
  /// Call this instead of claim() when the failure is raised for a stream. If the owner was closed before the
  /// failure was made, nobody could ever deal with the failure; this call then marks it as dealt with, so
  /// that streams raise it once.
  void raised_for_stream();
  /// Counts the failure as raised, and raises it.
  [[noreturn]] void raise();

 private:
  friend class FailureOwner;
  friend class SpoiledMark;
  void settle(std::uint64_t epoch);

  const std::exception_ptr error_;
  const std::shared_ptr<FailureOwner> owner_;
  const Stands stands_;
  const bool blocks_;
  const bool unowned_;
  // The epoch at which the failure was dealt with, 0 before. The release store in settle() pairs with the
  // acquire loads in stands(), settled_since() and dealt_with().
  std::atomic<std::uint64_t> settled_{0};
  // The next two are sequentially consistent: they are used only after a failure, and together.
  std::atomic<bool> raised_{false};
  std::atomic<std::size_t> spoils_{0};  // the number of ranges that it spoils, but for freed memory
};

using FailurePtr = std::shared_ptr<Failure>;

/// Owns the failures of some tasks: a process group has one, and program_errors() is that of all other tasks.
/// An owner is always held by a shared_ptr. Thread-safe.
class FailureOwner : public std::enable_shared_from_this<FailureOwner> {
 public:
  explicit FailureOwner(Stands stands = Stands::kUntilDealtWith) : stands_(stands) {}

  /// Makes the failure of a task whose writes are known and are spoiled.
  FailurePtr fail(std::exception_ptr error);
  /// Makes the failure of a task of which nobody knows what it should have written. It stands until it is
  /// dealt with, and the tasks behind it in the stream are given up.
  FailurePtr fail_unknown(std::exception_ptr error);
  /// Call this when the program has dealt with everything that has failed so far. Streams no longer raise
  /// those failures, and their memory may be read. Failures that come later stand again.
  void settle() noexcept;
  /// Does what settle() does, and closes the owner. A task that fails later still spoils its memory until the
  /// memory is written anew or freed, but streams raise its failure only once.
  void close() noexcept;
  /// Returns the failures that stand.
  std::vector<FailurePtr> standing();

 private:
  FailurePtr make(std::exception_ptr error, bool blocks);
  void settle_all(bool for_good) noexcept;

  const Stands stands_;
  const base::ProcessMark made_;  // a forked child has none of its parent's groups, so their owners do
                                  // nothing in it
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<Failure>> standing_;
};

/// Returns the owner of the failures of this process that belong to no group: what kernels, copies and host
/// functions have thrown. Those of kernels and copies stand while they spoil memory, or until they were
/// raised once.
FailureOwner& program_errors();

}  // namespace vdev
