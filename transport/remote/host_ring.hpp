// The rings across the hosts: one for each place that every host has a rank for.
#pragma once

#include <memory>
#include <optional>

#include "transport/remote/remote_links.hpp"
#include "transport/state/ring_order.hpp"

namespace vccl {

class RemoteHostRing final : public HostRing {
 public:
  /// `ring` are this rank's links on the ring of all ranks, and null if it has none. Where every host has one
  /// rank, that ring is the one across the hosts. Otherwise the ranks that are on a ring get links of its
  /// own.
  RemoteHostRing(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
                 const RingOrder& order, bool mappable, RemoteLinks* ring);

  /// Connects links of its own, if there are any. Every rank must call this. Throws what
  /// RemoteLinks::connect() throws.
  void connect(Meeting& meeting, const LinkSettings& settings);
  /// Returns the links that this rank uses on a ring, and null if it is on none.
  RemoteLinks* links() { return links_; }
  /// Returns the same if they are not those of the ring of all ranks, and null otherwise.
  RemoteLinks* own_links() { return own_ ? &*own_ : nullptr; }

  int size() const override { return order_.host_count(); }
  int position() const override { return position_; }
  std::span<const int> ranks(int position) const override { return order_.ranks_of_host(position); }
  int rings() const override { return order_.least_ranks(); }
  bool mappable() const override { return mappable_; }
  Outbox& right() override { return *right_; }
  Inbox& left() override { return *left_; }
  void post(const std::byte* data, std::size_t bytes) override { right_->lend(data, bytes); }
  bool all(bool own) override;

 private:
  const RingOrder& order_;
  const bool mappable_;
  const int position_;
  std::optional<RemoteLinks> own_;
  RemoteLinks* links_ = nullptr;
  std::optional<RemoteOutbox> right_;
  std::optional<RemoteInbox> left_;
};

}  // namespace vccl
