// What the ranks announced with an operation, on all hosts.
#pragma once

#include <vector>

#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

/// The phases of Peers in the operations that go over the HostRing. They come before the algorithm's own.
struct HostPhases {
  static constexpr std::uint32_t kAgreed = 1;  // whether all memory is mapped: HostRing::all() or kDeclined
  static constexpr std::uint32_t kCollected = 2;  // the payloads of other hosts are there
  static constexpr std::uint32_t kRead = 3;       // this rank has read them
};

/// Says whose payloads are wanted where.
struct PayloadRoute {
  int from = -1;  // the only rank that has one; -1: all have
  int to = -1;    // a rank of the only host that wants them; -1: all want them
};

/// The payloads (Announcement::payload) of the ranks that have one.
///
/// Those of this host lie where they were announced. Between hosts, those of each host go once round every
/// ring of hosts. A rank on a ring keeps what comes. A rank on none reads what a rank of its host keeps in
/// its slots.
class Payloads {
 public:
  /// The most bytes that the payloads of all ranks may have together, if there are several hosts. Those of
  /// one host then fit into three blocks. Each rank may send so many before its neighbour has taken one.
  static constexpr std::size_t kMostBytes = 512 * 1024;

  /// Collects the payloads of `bytes` bytes each, inside an operation that announced them, and is `across` if
  /// there are several hosts. With 0 bytes, blocks until all hosts have begun the operation.
  Payloads(Communicator& communicator, std::size_t bytes, PayloadRoute route);
  Payloads(const Payloads&) = delete;

  /// Returns the payload of a rank that has one, where it is wanted.
  const std::byte* operator[](int rank) const { return places_[rank]; }
  /// Call this when all payloads have been read, and before the operation ends.
  void finish();

 private:
  bool has_one(int rank) const { return route_.from < 0 || rank == route_.from; }
  bool has_some(int host) const { return route_.from < 0 || communicator_.host_of(route_.from) == host; }
  int hops(int host) const;
  bool is_on_ring() const { return peers_.own() < hosts_->rings(); }
  bool serves_others() const { return is_on_ring() && int(peers_.ranks().size()) > hosts_->rings(); }
  void place(std::byte* memory);
  void exchange();
  template <class Each>
  void in_blocks(int host, Each each) const;

  Communicator& communicator_;
  Peers& peers_;
  HostRing* const hosts_;
  const PayloadRoute route_;
  const std::size_t bytes_;
  PerRank<const std::byte*> places_;
  std::vector<std::byte> own_memory_;
};

}  // namespace vccl
