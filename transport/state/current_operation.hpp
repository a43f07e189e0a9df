// The operation that a communicator is running: what one thread at a time owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/state/group.hpp"
#include "transport/state/window.hpp"

namespace vccl {

/// The operation under way. The meeting in which the communicator is made counts as operation 0.
///
/// One thread at a time owns it: first the thread that makes the communicator, then, from begin() to end() of
/// each operation, the thread that runs that operation, or between two operations the thread that borrowed
/// it. Only the owner may call the members, except for begin(), borrow(), sequence() and under_way(), which
/// any thread may call. What needs a deadline or an operation's name on another thread, such as a message,
/// keeps its own.
class CurrentOperation {
 public:
  /// Makes the calling thread the owner, for the meeting, which ends at `deadline`.
  CurrentOperation(const Group& group, const Deadline& deadline) : group_(group), deadline_(deadline) {}

  /// Makes the calling thread the owner and counts the operation. Returns false and does nothing if another
  /// operation is under way.
  bool begin(const Announcement& announcement, const Deadline& deadline);
  /// Ends the operation, and the calling thread's ownership.
  void end() noexcept;
  bool under_way() const noexcept { return state_.load(std::memory_order_relaxed) == State::under_way; }
  /// Makes the calling thread the owner until give_back(), for a short look between two operations. An
  /// operation that begins meanwhile waits for give_back(). Returns false and does nothing if there is
  /// another owner. Call this only after the meeting.
  bool borrow() noexcept;
  void give_back() noexcept;
  /// Returns how many operations have begun. This is the operation's number, or 0 in the meeting.
  std::uint64_t sequence() const noexcept { return sequence_.load(std::memory_order_relaxed); }

  const Signature& signature() const { return signature_; }
  /// Returns the number of the algorithm that this rank announced.
  std::uint32_t algorithm() const { return algorithm_; }
  /// Returns Announcement::order.
  std::uint32_t order() const { return order_; }
  /// Returns the ranks on other hosts that have to begin this operation before it can end on this rank, as
  /// far as that is known. Of many, it names some.
  std::vector<int> far_needs() const;
  const Window& window() const { return window_; }
  const Deadline& deadline() const { return deadline_; }

  /// Returns "all_reduce(float32, 1024 elements, SUM) (operation 7 of group default_pg)", for messages.
  std::string text() const;
  /// Returns "all_reduce(float32, 1024 elements, SUM) on cpu, operation 7 of group default_pg", for messages
  /// that compare calls of several communicators.
  std::string call_text() const;
  /// Returns the error text for two ranks whose signatures differ: "rank 0 called A as operation 7 of group
  /// G, but rank 1 called B. ...". Other mismatches have texts of their own, where they are found: messages
  /// (message_engine.cpp), deadlocks (deadlock_judge.cpp), and what the process group compares (csrc_pg/).
  std::string mismatch_text(int rank, const Signature& signature, int other_rank,
                            const Signature& other_signature) const;
  /// Returns the error text for two ranks that chose different algorithms for the operation.
  std::string algorithms_text(int rank, int other_rank) const;
  /// Returns the error text for two ranks whose Announcement::order differs.
  std::string order_text(int rank, int other_rank) const;

 private:
  enum class State : std::uint8_t { idle, borrowed, under_way };

  const Group& group_;
  std::atomic<State> state_{State::idle};
  // Only the owner writes this. It is atomic because any thread may ask for the number, from which nothing
  // else follows.
  std::atomic<std::uint64_t> sequence_{0};
  Signature signature_;
  std::uint32_t algorithm_ = 0, order_ = 0;
  Needs needs_ = Needs::unknown;
  Window window_;
  Deadline deadline_;
};

}  // namespace vccl
