// What a process publishes of its waits, put together from its calls and messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "transport/deadlock_watch.hpp"
#include "transport/shared/wait_record.hpp"
#include "transport/state/group.hpp"
#include "transport/support/function_ref.hpp"

namespace vccl {

/// Returns a number for the communicator that is the same on every rank of the host.
std::uint64_t id_of_communicator(const Group& group);

/// Returns "rank 1 waits in all_reduce(...) on cpu, operation 3 of group a", for a rank of the group's host.
/// Waits that have just begun are not known.
std::string waits_text(const Group& group, int index);

/// Collects the waits of a process. Records are compared as a whole, so unused parts are zero.
class WaitDescription {
 public:
  /// Sets the process's rank in the job.
  void set_rank(std::uint64_t rank) { result_.rank = rank; }
  /// Adds a call that waits for those ranks of the group's host for whose index `awaits` holds.
  void add_call(const Group& group, const std::string& text, FunctionRef<bool(int)> awaits);
  /// Adds an entry for each peer that messages wait for. A peer on another host is not known, so such an
  /// entry is part of no circle.
  void add_messages(const Group& group, std::span<const WatchedMessages::Pending> messages);

  /// Returns whether there was room for everything.
  bool complete() const { return complete_; }
  const PublishedWaits& result() const { return result_; }

 private:
  PublishedWait* add(const Group& group, const std::string& text);

  PublishedWaits result_{};
  bool complete_ = true;
};

}  // namespace vccl
