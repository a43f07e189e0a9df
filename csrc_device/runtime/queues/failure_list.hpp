// The failures of a stream, and the choice of the failure to raise.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc_device/runtime/failure.hpp"

namespace vdev {

/// Holds objects that are to be destroyed without a lock, because their destructors may run any code.
using Trash = std::vector<std::shared_ptr<void>>;

/// Holds failures in the order in which they came. Not thread-safe.
class FailureList {
 public:
  bool empty() const { return failures_.empty(); }
  const FailurePtr& first() const { return failures_.front(); }
  auto begin() const { return failures_.begin(); }
  auto end() const { return failures_.end(); }

  /// Adds a failure, whatever the list has.
  void push(FailurePtr failure) { failures_.push_back(std::move(failure)); }
  /// Adds all failures of another list, whatever this one has.
  void push_all(const FailureList& others);
  /// Adds the failures that `reported` has, and removes those that do not stand any more. Of the failures
  /// that stand until they are dealt with, one for each owner is enough. What is not kept goes to `trash`.
  void merge(FailureList reported, Trash& trash);

  /// Returns the first failure that stands for a call that began at `epoch`, or null.
  FailurePtr first_standing(std::uint64_t epoch) const;
  /// Returns the first failure that stands and behind which every task is given up, or null.
  FailurePtr first_blocking() const;
  /// Returns the failure to raise for a call that began at `epoch`, or null: the first failure that stands
  /// and that nobody has raised yet, or else the first one that stands.
  FailurePtr to_raise(std::uint64_t epoch) const;

  /// Raises to_raise(), and counts all failures as raised: a synchronisation raises one failure for all.
  /// Returns if there is none.
  void raise_one_for_all(std::uint64_t epoch) const;
  /// Raises a failure of which a caller that began at `epoch`, and asks spoiled_memory() next, would not
  /// learn: one that blocks the stream, one that was dealt with while the caller waited, or, once, one that
  /// nobody has raised yet.
  void raise_before_reading(std::uint64_t epoch) const;

 private:
  std::vector<FailurePtr> failures_;
};

}  // namespace vdev
