// What a process publishes of its waits, put together from its calls and messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/deadlock_watch.hpp"
#include "transport/shared/wait_record.hpp"
#include "transport/state/far_record.hpp"
#include "transport/state/group.hpp"
#include "transport/support/function_ref.hpp"

namespace vccl {

/// Returns "rank 1 waits in all_reduce(...) on cpu, operation 3 of group a", for a rank of the group's host.
/// Waits that have just begun are not known.
std::string waits_text(const Group& group, int index);

/// Collects the waits of a process. Records are compared as a whole, so unused parts are zero.
class WaitDescription {
 public:
  /// `own` is the process's token, and `far` is what is known of processes on other hosts.
  WaitDescription(Token own, const FarRecords& far) : own_(own), far_(far) {}

  /// Sets the process's rank in the job, and PublishedWaits::state.
  void set_process(std::uint64_t rank, std::uint64_t state) {
    result_.rank = rank;
    result_.state = state;
  }
  /// A call that waits for those ranks of the group's host for whose index `awaits` holds, and for those of
  /// the ranks `far` on other hosts that have not begun the operation, or meeting, of that number.
  struct Call {
    const std::string& text;
    FunctionRef<bool(int)> awaits;
    const std::vector<int>& far;
    std::uint64_t number;
    bool is_meeting;
  };
  void add_call(const Group& group, const Call& call);
  /// Adds an entry for each peer that messages wait for. A peer on another host counts only if nothing that
  /// it has sent is under way.
  void add_messages(const Group& group, std::span<const WatchedMessages::Pending> messages);

  /// Returns whether there was room for everything.
  bool complete() const { return complete_; }
  const PublishedWaits& result() const { return result_; }
  /// Returns the processes on other hosts whose records decide whether they are awaited.
  const std::vector<Token>& asked() const { return asked_; }

 private:
  PublishedWait* add(const Group& group, const std::string& text);
  bool add_far(PublishedWait& entry, Token token, FunctionRef<bool(const WaitFacts&)> holds);
  bool add_peer(PublishedWait& entry, const Group& group, int rank);

  const Token own_;
  const FarRecords& far_;
  PublishedWaits result_{};
  std::vector<Token> asked_;
  bool complete_ = true;
};

}  // namespace vccl
