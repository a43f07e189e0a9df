// The ring of the ranks with the same place on each host, over links of its own.
#pragma once

#include <memory>
#include <optional>

#include "transport/remote/remote_links.hpp"
#include "transport/state/ring_order.hpp"

namespace vccl {

class RemoteHostRing final : public HostRing {
 public:
  /// Returns whether the hosts of `order` have such rings beside the ring of all ranks: several hosts, with
  /// equally many ranks each, and more than one.
  static bool fits(const RingOrder& order);

  /// `ring` are this rank's links on the ring of all ranks, and null if it has none.
  RemoteHostRing(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
                 RemoteLinks* ring);

  /// Connects to the neighbours. Every rank must call this. Throws what RemoteLinks::connect() throws.
  void connect(const RingOrder& order, Meeting& meeting, const LinkSettings& settings);
  RemoteLinks& links() { return links_; }

  int size() const override { return size_; }
  int position() const override { return position_; }
  Outbox& right() override { return *right_; }
  Inbox& left() override { return *left_; }
  bool all(bool own) override;

 private:
  RemoteLinks* const ring_;
  RemoteLinks links_;
  int size_ = 0, position_ = 0;
  std::optional<RemoteOutbox> right_;
  std::optional<RemoteInbox> left_;
};

}  // namespace vccl
