// What the ranks announced with an operation, on all hosts.
#pragma once

#include "csrc_pg/collectives/buffers/host_steps.hpp"
#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

/// The phases of Peers in the operations that go across hosts. They come before the algorithm's own.
struct HostPhases {
  static constexpr std::uint32_t kAgreed = 1;  // whether all memory is mapped: HostRing::all() or kDeclined
  static constexpr std::uint32_t kCollected = 2;  // the payloads of other hosts are there
};

/// Says whose payloads are wanted where.
struct PayloadRoute {
  int from = -1;  // the only rank that has one; -1: all have
  int to = -1;    // the only rank that wants them; -1: all want them
};

/// The payloads (Announcement::payload) of the ranks that have one.
///
/// Those of this host lie where they were announced. The leaders of the hosts exchange those of other hosts
/// over the leaps, and keep them in their slots, where the ranks of their hosts read them. Nobody writes
/// there before the host's ranks have all begun the next operation, and so have read them.
class Payloads {
 public:
  /// The most bytes that the payloads of all ranks may have together, if there are several hosts. A step then
  /// has two blocks at most, which a rank may send before its neighbour has taken one.
  static constexpr std::size_t kMostBytes = 512 * 1024;

  /// Collects the payloads of `bytes` bytes each, inside an operation that announced them, and whose route
  /// across hosts is not Route::ring. With 0 bytes, blocks until all hosts have begun the operation.
  Payloads(Communicator& communicator, std::size_t bytes, PayloadRoute route);
  Payloads(const Payloads&) = delete;

  /// Returns the payload of a rank that has one, where it is wanted. The bytes stay valid until this rank
  /// begins its next operation.
  const std::byte* operator[](int rank) const { return places_[rank]; }

 private:
  bool has_one(int rank) const { return route_.from < 0 || rank == route_.from; }
  bool leads() const { return peers_.own() == 0; }
  bool waits_for_leader() const;
  HostSteps steps() const;
  std::byte* place(int host, std::byte* memory);
  void exchange(const HostSteps& steps, std::byte* memory);

  Communicator& communicator_;
  Peers& peers_;
  HostRing* const hosts_;
  const PayloadRoute route_;
  const std::size_t bytes_;
  PerRank<const std::byte*> places_;
};

}  // namespace vccl
