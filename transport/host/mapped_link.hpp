// The ring's links between ranks of one host. Counters in shared memory say which blocks were sent and read.
// A reader reads each block where it lies, without a copy.
#pragma once

#include "transport/host/operation_start.hpp"

namespace vccl {

/// Sends blocks to a right neighbour on this host. A block that does not lie in a mapped window goes through
/// a slot: block n, counted over the communicator's life, is in slot n % kSlots of this rank. The slot is
/// free again when the neighbour has consumed block n - kSlots.
class MappedOutbox final : public Outbox {
 public:
  MappedOutbox(const HostGroup& host, const CurrentOperation& operation, Waiter& waiter, int right)
      : host_(host),
        operation_(operation),
        waiter_(waiter),
        own_(host.line(host.index)),
        peer_(host.line(right)),
        right_(right) {}

  void post(std::size_t offset, std::size_t bytes) override;
  std::byte* reserve() override;
  void commit(std::size_t bytes) override;
  void drain() override;

 private:
  void send();

  const HostGroup& host_;
  const CurrentOperation& operation_;
  Waiter& waiter_;
  RankLine& own_;
  RankLine& peer_;
  int right_;
  std::uint64_t posted_ = 0;
};

/// Receives blocks from a left neighbour on this host.
class MappedInbox final : public Inbox {
 public:
  MappedInbox(const HostGroup& host, Waiter& waiter, int left)
      : host_(host), waiter_(waiter), own_(host.line(host.index)), peer_(host.line(left)), left_(left) {}

  /// Call this after the start of an operation. `window` says where the neighbour's blocks lie.
  void begin(const PeerWindow& window) { window_ = window; }
  const std::byte* take(std::size_t offset, std::size_t bytes) override;
  const std::byte* take_committed(std::size_t bytes) override;
  void release() override;

 private:
  void await();

  const HostGroup& host_;
  Waiter& waiter_;
  RankLine& own_;
  RankLine& peer_;
  int left_;
  PeerWindow window_;
  std::uint64_t consumed_ = 0;
};

/// Throws Error(invalid) for a block that is longer than kBlockBytes or lies outside of the window.
void check_block(const Window& window, std::size_t offset, std::size_t bytes);

}  // namespace vccl
