// The links across the hosts: rings, one for each place that every host has a rank for, and leaps.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "transport/links/remote_links.hpp"
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
  /// Returns on how many rings this rank has links beside those of the ring of all ranks. Each leap but the
  /// first one counts as a ring.
  std::size_t own_links() const { return own_.size(); }
  /// Calls each(RemoteLinks&) for them.
  template <class Each>
  void each_own(Each each) {
    for (RemoteLinks& links : own_) each(links);
  }
  /// Lets a wait for any link of this rank look for failures on all of them.
  void watch_all();
  /// Does what RemoteLinks::end_of_peer() does.
  std::optional<RankEnd> end_of_own_peer(int rank) noexcept;

  /// Announces the operation under way over the links of its route.
  void begin(Route route);
  /// Blocks until the neighbours to which it was announced at its beginning have begun it too.
  void match();
  void drain();

  int size() const override { return order_.host_count(); }
  int position() const override { return position_; }
  std::span<const int> ranks(int position) const override { return order_.ranks_of_host(position); }
  int rings() const override { return order_.least_ranks(); }
  bool mappable() const override { return mappable_; }
  Outbox& right() override { return right(0); }
  Inbox& left() override { return left(0); }
  void post(const std::byte* data, std::size_t bytes) override { ends_[0].right.lend(data, bytes); }
  int leaps() const override;
  Outbox& right(int leap) override { return ends_[static_cast<std::size_t>(leap)].right; }
  Inbox& left(int leap) override { return ends_[static_cast<std::size_t>(leap)].left; }
  bool all(bool own) override;

 private:
  /// What goes in and out over the links of a ring or of a leap.
  struct Ends {
    explicit Ends(RemoteLinks& links) : right(links), left(links) {}
    RemoteOutbox right;
    RemoteInbox left;
  };

  bool leads() const { return place_ == 0; }

  const RingOrder& order_;
  const bool mappable_;
  const int position_, place_;
  RemoteLinks* const ring_of_all_;
  std::deque<RemoteLinks> own_;
  std::vector<RemoteLinks*> leaps_;  // this rank's links by leap; only the first one if it is no leader
  RemoteLinks* announced_on_ = nullptr;
  std::vector<Ends> ends_;  // of leaps_
};

}  // namespace vccl
