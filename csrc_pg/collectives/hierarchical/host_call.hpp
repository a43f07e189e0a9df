// What the hierarchical algorithms have in common.
//
// The first synchronisation is the beginning of the operation. After it every input of this host is written,
// and every output may be. Then the ranks that are on a ring of hosts each send and receive their share, and
// read and write the memory of any rank of their host. Ranks of a host that are on no ring only show their
// memory, and may copy inside the host. The second synchronisation says that all are done.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

class HostCall {
 public:
  /// Must be made inside an operation whose memory is all mapped, on every host. Throws Error(protocol) if a
  /// peer's buffer does not have the length that follows from the call.
  HostCall(Communicator& communicator, const Call& call);

  Peers& peers() const { return peers_; }
  HostRing& hosts() const { return hosts_; }
  /// Returns how many ranks this host has.
  int ranks() const { return int(peers_.ranks().size()); }
  /// Returns whether this rank is on a ring of hosts.
  bool is_on_ring() const { return peers_.own() < hosts_.rings(); }
  /// Returns the position of the host that is so many places to the right of this rank's.
  int host_at(int step) const { return (hosts_.position() + step + 2 * hosts_.size()) % hosts_.size(); }
  std::size_t element() const { return element_; }
  /// Return the buffers of a rank of this host, by its rank in the group.
  const std::byte* input(int rank) const { return inputs_[index_[rank]]; }
  std::byte* output(int rank) const { return outputs_[index_[rank]]; }

  /// Returns this rank's share of what goes between hosts: `count` elements of `element` bytes, which are
  /// divided among the rings.
  Chunk share(std::size_t count, std::size_t element) const {
    return is_on_ring() ? even_chunk(count, element, peers_.own(), hosts_.rings()) : Chunk{0, 0};
  }
  /// Returns the longest share of any ring.
  std::size_t longest_share(std::size_t count, std::size_t element) const {
    return even_chunk(count, element, 0, hosts_.rings()).count;
  }

  /// Does the second synchronisation. First waits until nobody reads memory of this host that post() has
  /// sent.
  void finish() const;

 private:
  Peers& peers_;
  HostRing& hosts_;
  const std::size_t element_;
  PerRank<int> index_;  // of each rank of the group among the peers; -1: on another host
  PerRank<const std::byte*> inputs_;
  PerRank<std::byte*> outputs_;
};

}  // namespace vccl
