#include "transport/state/current_operation.hpp"

#include "base/text.hpp"

namespace vccl {

bool CurrentOperation::begin(const Announcement& announcement, const Deadline& deadline) {
  // This exchange pairs with the store in end(): this thread sees what the owner before it has written.
  if (under_way_.exchange(true)) return false;
  signature_ = announcement.signature;
  algorithm_ = announcement.algorithm;
  window_ = window_in(group_.regions, announcement.window);
  deadline_ = deadline;
  sequence_.store(sequence() + 1, std::memory_order_relaxed);
  return true;
}

void CurrentOperation::end() noexcept {
  // This store pairs with the exchange in begin().
  under_way_ = false;
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
  return base::text("rank ", rank, " called ", group_.describe_signature(signature), " as operation ",
                    sequence(), " of group ", group_.name, ", but rank ", other_rank, " called ",
                    group_.describe_signature(other_signature),
                    ". Every rank must call the same collectives in the same order with the same arguments.");
}

std::string CurrentOperation::algorithms_text(int rank, int other_rank) const {
  return base::text("rank ", rank, " and rank ", other_rank, " chose different algorithms for ", text(),
                    ". VCCL_ALGO must be the same on every rank.");
}

}  // namespace vccl
