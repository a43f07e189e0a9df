// Every rank's memory at once, where all ranks are on this host.
#pragma once

#include <vector>

#include "transport/gate.hpp"

namespace vccl {

class MappedPeers final : public Peers {
 public:
  MappedPeers(Group& group, Waiter& waiter, Gate& gate);

  bool mappable() const override { return mappable_; }
  bool all_mapped() override;
  std::span<std::byte> input(int rank) override { return windows_.at(static_cast<std::size_t>(rank)).input; }
  std::span<std::byte> output(int rank) override {
    return windows_.at(static_cast<std::size_t>(rank)).output;
  }
  std::uint64_t note(int rank) override { return gate_.announced(rank).windows.note; }
  const std::byte* payload(int rank) override;
  std::byte* scratch(int rank) override { return group_.host.slots(rank); }
  void arrive(std::uint32_t phase) override;
  void await(int rank, std::uint32_t phase) override;
  void await_all(std::uint32_t phase) override;
  bool crowded() const override { return group_.crowded; }
  int claim_share() override;
  void deliver_share() override;
  void await_shares() override;

  /// Before the gate.
  void begin(const Announcement& announcement);
  /// The operation has succeeded: this rank is done with the peers' memory.
  void finish();
  /// The operation has failed, and so has the group: returns when no peer writes to our memory any more, or
  /// after a few seconds, if a rank is stopped in the middle of it.
  void withdraw() noexcept;

 private:
  struct Shown {
    std::span<std::byte> input, output;
  };

  std::uint64_t number(std::uint32_t phase) const {
    return group_.sequence.load(std::memory_order_relaxed) << RankLine::kPhaseBits | phase;
  }
  int ranks() const { return static_cast<int>(windows_.size()); }
  bool show(int rank);
  bool claim(int rank);
  bool has_ended(int rank) const noexcept;

  Group& group_;
  Waiter& waiter_;
  Gate& gate_;
  const bool mappable_;
  // The operation under way:
  bool shows_ = false;   // it shows memory
  bool inline_ = false;  // its payload is in the operation slot
  std::vector<Shown> windows_;
};

}  // namespace vccl
