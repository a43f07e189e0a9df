#include "transport/state/current_operation.hpp"

#include <sched.h>

#include "base/text.hpp"
#include "transport/explanation.hpp"

namespace vccl {

bool CurrentOperation::begin(const Announcement& announcement, const Deadline& deadline) {
  // This exchange pairs with the stores in end() and give_back(): this thread sees what the owner before it
  // has written.
  for (State state = State::idle; !state_.compare_exchange_weak(state, State::under_way);
       state = State::idle) {
    if (state == State::under_way) return false;
    if (state == State::borrowed) sched_yield();
  }
  signature_ = announcement.signature;
  algorithm_ = announcement.algorithm;
  order_ = announcement.order;
  needs_ = announcement.needs;
  window_ = window_in(group_.regions, announcement.window);
  deadline_ = deadline;
  sequence_.store(sequence() + 1, std::memory_order_relaxed);
  return true;
}

void CurrentOperation::end() noexcept {
  // This store pairs with the exchanges in begin() and borrow().
  state_ = State::idle;
}

bool CurrentOperation::borrow() noexcept {
  State idle = State::idle;
  return state_.compare_exchange_strong(idle, State::borrowed);
}

void CurrentOperation::give_back() noexcept {
  // This store pairs with the exchanges in begin() and borrow().
  state_ = State::idle;
}

std::vector<int> CurrentOperation::far_needs() const {
  if (sequence() == 0) return {};
  if (needs_ == Needs::all) return far_ranks(group_);
  if (needs_ == Needs::root && group_.far.contains(signature_.root)) return {signature_.root};
  return {};
}

std::string CurrentOperation::text() const {
  const std::uint64_t number = sequence();
  if (number == 0) return base::text("the meeting of group ", group_.name);
  return base::text(group_.describe_signature(signature_), " (operation ", number, " of group ", group_.name,
                    ")");
}

std::string CurrentOperation::call_text() const {
  return base::text(group_.describe_signature(signature_),
                    group_.device.empty() ? "" : base::text(" on ", group_.device), ", operation ",
                    sequence(), " of group ", group_.name);
}

// OperationStart compares the signatures of the ranks of one host, and RemoteLinks those of ring neighbours
// on two hosts; both call this. describe_signature() gives "all_reduce(float32, 4 elements, SUM)": the
// collectives set it to describe() in csrc_pg/collectives/call.cpp, since the transport knows no dtypes.
std::string CurrentOperation::mismatch_text(int rank, const Signature& signature, int other_rank,
                                            const Signature& other_signature) const {
  Signature same_but_checks = other_signature;
  same_but_checks.checks = signature.checks;
  if (signature == same_but_checks) {
    return base::text(group_.rank_text(rank), " and ", group_.rank_text(other_rank),
                      " have asked for different checks before ", text(),
                      ". VCCL_CHECK must be the same on every rank.");
  }
  return base::text(group_.rank_text(rank), " called ", group_.describe_signature(signature),
                    " as operation ", sequence(), " of group ", group_.name, ", but ",
                    group_.rank_text(other_rank), " called ", group_.describe_signature(other_signature),
                    ". Every rank must call the same collectives in the same order with the same arguments.");
}

std::string CurrentOperation::order_text(int rank, int other_rank) const {
  return base::text(
      group_.rank_text(rank), " and ", group_.rank_text(other_rank), " have called ", text(),
      " at different places among the collectives of other groups (VCCL_CHECK=order). On GPUs "
      "this may deadlock: all ranks must use their groups in the same order.",
      explanation_of_order(group_.name, group_.names.in_job(rank), group_.names.in_job(other_rank)));
}

std::string CurrentOperation::algorithms_text(int rank, int other_rank) const {
  return base::text(group_.rank_text(rank), " and ", group_.rank_text(other_rank),
                    " chose different algorithms for ", text(),
                    ". VCCL_ALGO must be the same on every rank.");
}

}  // namespace vccl
