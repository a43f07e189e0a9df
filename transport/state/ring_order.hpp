// The order of a group's ranks: by host, and in the ring.
#pragma once

#include <cstddef>
#include <vector>

namespace vccl {

/// Where the ranks are in the ring, which visits all ranks of one host before it goes on to the next host.
/// The thread that makes the communicator sets it. It is constant afterwards, so any thread may read it.
class RingOrder {
 public:
  RingOrder() = default;
  /// `hosts` has the ranks of each host, and each rank of the group once; `rank` is this rank.
  RingOrder(std::vector<std::vector<int>> hosts, int rank);

  int host_count() const { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const { return host_of_.at(static_cast<std::size_t>(rank)); }
  const std::vector<int>& ranks_of_host(int host) const { return hosts_.at(static_cast<std::size_t>(host)); }

  /// Returns the index of `rank` among the ranks of its host.
  int place_of(int rank) const;
  /// Returns how many ranks the smallest host has.
  int least_ranks() const;

  const std::vector<int>& ranks() const { return ranks_; }  // by position
  int rank_at(int position) const { return ranks_.at(static_cast<std::size_t>(position)); }
  /// Returns this rank's position.
  int position() const { return position_; }
  /// Returns this rank's neighbours.
  int right() const { return rank_at((position_ + 1) % size()); }
  int left() const { return rank_at((position_ + size() - 1) % size()); }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }

  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_;
  std::vector<int> ranks_;
  int position_ = 0;
};

}  // namespace vccl
