// Access to the memory of all ranks of this host at once.
#pragma once

#include <span>
#include <vector>

#include "transport/host/operation_start.hpp"

namespace vccl {

/// A peer's index is its index in the HostGroup.
class MappedPeers final : public Peers {
 public:
  MappedPeers(const Group& group, const CurrentOperation& operation, const FailureChannel& failures,
              Waiter& waiter, OperationStart& start);

  std::span<const int> ranks() const override { return group_.host.ranks; }
  int own() const override { return group_.host.index; }
  bool mappable() const override { return mappable_; }
  bool all_mapped() override;
  std::span<std::byte> input(int peer) override { return windows_.at(static_cast<std::size_t>(peer)).input; }
  std::span<std::byte> output(int peer) override {
    return windows_.at(static_cast<std::size_t>(peer)).output;
  }
  std::uint64_t factor(int peer) override { return start_.announced(peer).windows.factor; }
  const std::byte* payload(int peer) override;
  std::byte* scratch(int peer) override { return group_.host.slots(peer); }
  void arrive(std::uint32_t phase) override;
  void await(int peer, std::uint32_t phase) override;
  void await_all(std::uint32_t phase) override;
  bool declined(int peer) override;
  bool oversubscribed() const override { return group_.oversubscribed; }
  int claim_work_item() override;
  void deliver_work_item() override;
  void await_work_items() override;

  /// Call this before the start of an operation.
  void begin(const Announcement& announcement);
  /// Call this when the operation has succeeded and this rank will not touch the peers' memory any more.
  void finish();
  /// Call this before finish(), when this rank has read all that it reads. Throws the failure if a rank of
  /// this host has given the operation up: what was read in that rank's memory may not be what it sent.
  void check_withdrawn() const;
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
  int count() const { return static_cast<int>(windows_.size()); }
  bool show(int peer);
  bool claim(int peer);
  bool has_ended(int peer) const noexcept;

  const Group& group_;
  const CurrentOperation& operation_;
  const FailureChannel& failures_;
  Waiter& waiter_;
  OperationStart& start_;
  const bool mappable_;
  // The next three members describe the operation under way.
  bool shows_ = false;   // whether the peers show memory to each other
  bool inline_ = false;  // whether the payload lies in the operation slot
  std::vector<Shown> windows_;
};

}  // namespace vccl
