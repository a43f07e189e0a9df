// The ring's links between ranks of one host: counters in shared memory, and blocks that are read where they
// lie.
#pragma once

#include "transport/gate.hpp"

namespace vccl {

/// Blocks to a right neighbour on this host. Block n of the group's life, if it does not lie in a mapped
/// window, is in slot n % kSlots of this rank, which is free again once the neighbour has consumed block n -
/// kSlots.
class MappedOutbox final : public Outbox {
 public:
  MappedOutbox(Group& group, Waiter& waiter, int right)
      : group_(group),
        waiter_(waiter),
        own_(group.own_line()),
        peer_(group.host.line(right)),
        right_(right) {}

  void post(std::size_t offset, std::size_t bytes) override;
  std::byte* reserve() override;
  void commit(std::size_t bytes) override;
  void drain() override;

 private:
  void send();

  Group& group_;
  Waiter& waiter_;
  RankLine& own_;
  RankLine& peer_;
  int right_;
  std::uint64_t posted_ = 0;
};

/// Blocks from a left neighbour on this host.
class MappedInbox final : public Inbox {
 public:
  MappedInbox(Group& group, Waiter& waiter, int left)
      : group_(group), waiter_(waiter), own_(group.own_line()), peer_(group.host.line(left)), left_(left) {}

  /// Behind the gate of an operation: where the neighbour's blocks lie.
  void begin(const PeerWindow& window) { window_ = window; }
  const std::byte* take(std::size_t offset, std::size_t bytes) override;
  const std::byte* take_committed(std::size_t bytes) override;
  void release() override;

 private:
  void await();

  Group& group_;
  Waiter& waiter_;
  RankLine& own_;
  RankLine& peer_;
  int left_;
  PeerWindow window_;
  std::uint64_t consumed_ = 0;
};

/// Throws Error(invalid) for a block longer than kBlockBytes or outside of the operation's window.
void check_block(const Group& group, std::size_t offset, std::size_t bytes);

}  // namespace vccl
