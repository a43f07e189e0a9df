// Access to every rank's memory at once, for communicators whose ranks are all on this host.
#pragma once

#include <vector>

#include "transport/host/operation_start.hpp"

namespace vccl {

class MappedPeers final : public Peers {
 public:
  MappedPeers(const Group& group, const CurrentOperation& operation, const FailureChannel& failures,
              Waiter& waiter, OperationStart& start);

  bool mappable() const override { return mappable_; }
  bool all_mapped() override;
  std::span<std::byte> input(int rank) override { return windows_.at(static_cast<std::size_t>(rank)).input; }
  std::span<std::byte> output(int rank) override {
    return windows_.at(static_cast<std::size_t>(rank)).output;
  }
  std::uint64_t factor(int rank) override { return start_.announced(rank).windows.factor; }
  const std::byte* payload(int rank) override;
  std::byte* scratch(int rank) override { return group_.host.slots(rank); }
  void arrive(std::uint32_t phase) override;
  void await(int rank, std::uint32_t phase) override;
  void await_all(std::uint32_t phase) override;
  bool oversubscribed() const override { return group_.oversubscribed; }
  int claim_work_item() override;
  void deliver_work_item() override;
  void await_work_items() override;

  /// Call this before the start of an operation.
  void begin(const Announcement& announcement);
  /// Call this when the operation has succeeded and this rank will not touch the peers' memory any more.
  void finish();
  /// Call this when the operation, and with it the communicator, has failed. Blocks until no peer writes to
  /// this rank's memory any more, or for a few seconds if a rank is stopped in the middle of the operation.
  void withdraw() noexcept;

 private:
  struct Shown {
    std::span<std::byte> input, output;
  };

  std::uint64_t number(std::uint32_t phase) const {
    return operation_.sequence() << RankLine::kPhaseBits | phase;
  }
  int ranks() const { return static_cast<int>(windows_.size()); }
  bool show(int rank);
  bool claim(int rank);
  bool has_ended(int rank) const noexcept;

  const Group& group_;
  const CurrentOperation& operation_;
  const FailureChannel& failures_;
  Waiter& waiter_;
  OperationStart& start_;
  const bool mappable_;
  // The next three members describe the operation under way.
  bool shows_ = false;   // whether the ranks show memory to each other
  bool inline_ = false;  // whether the payload lies in the operation slot
  std::vector<Shown> windows_;
};

}  // namespace vccl
