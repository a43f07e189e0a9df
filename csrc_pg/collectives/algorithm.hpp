// What the selector knows of an algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc_pg/collectives/tuned_range.hpp"
#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// What travels with a rank's announcement (Announcement::payload): the number of bytes on which all ranks
/// agree, and what this rank puts there.
struct Payload {
  std::size_t bytes = 0;
  std::span<const std::byte> parts[2] = {};
};

/// Where an algorithm works.
enum class Reach : std::uint8_t {
  anywhere,  // over the ring
  one_host,  // through Peers, whatever the memory
  mapped,    // through Peers, where every rank can address every rank's buffers
};

/// One way to do one collective. `run` works inside an Operation with the call's window (call.hpp), and
/// returns when this rank's output is complete (what it posted last may still be on its way; the Operation
/// drains it). The call is valid, and has a kernel.
struct Algorithm {
  const char* name;  // of the family, as VCCL_ALGO names it: "ring"
  Collective collective;
  Reach reach;
  void (*run)(Communicator& communicator, const Call& call);
  // Null: it has none. Nothing: it cannot do this call.
  std::optional<Payload> (*payload)(const Call& call, int rank, int size) = nullptr;
};

/// Every algorithm there is (algorithm_list.hpp).
std::span<const Algorithm> algorithms() noexcept;

/// What `vccl.bench tune` has measured to be the best of them (tuned_table.hpp).
std::span<const TunedRange> tuned_table() noexcept;

/// The families that can do a collective among `size` ranks of one host, with equal parts of float32 elements
/// and `bytes` bytes in the longest buffer; in the order of algorithms(). None for a name that is unknown.
std::vector<std::string> capable_families(std::string_view collective, std::size_t bytes, int size,
                                          MemoryKind memory);

/// The algorithms for one call. Whether peers can address a rank's memory is known only once everybody has
/// announced where it lies; until then both are in play.
struct Choice {
  const Algorithm* first;
  const Algorithm* otherwise;  // where `first` wants mapped memory, and there is other memory
  Payload payload;             // of `first`

  /// A number that is the same on every rank which chooses alike.
  std::uint32_t number() const;
};

/// The first ones that work for the call on this communicator: of VCCL_ALGO, then of the tuned table from the
/// call's size on, then of all. The same on every rank, since it looks at nothing that ranks do not share.
/// Throws Error(invalid) for a VCCL_ALGO that cannot be understood, and Error(unsupported) naming the call.
Choice choose_algorithms(Communicator& communicator, const Call& call);

// One file each.
void ring_all_reduce(Communicator& communicator, const Call& call);
void ring_all_gather(Communicator& communicator, const Call& call);
void ring_broadcast(Communicator& communicator, const Call& call);
void ring_reduce_scatter(Communicator& communicator, const Call& call);
void ring_reduce(Communicator& communicator, const Call& call);
void ring_gather(Communicator& communicator, const Call& call);
void ring_scatter(Communicator& communicator, const Call& call);
void ring_all_to_all(Communicator& communicator, const Call& call);
void ring_barrier(Communicator& communicator, const Call& call);

void direct_all_reduce(Communicator& communicator, const Call& call);
void direct_all_gather(Communicator& communicator, const Call& call);
void direct_broadcast(Communicator& communicator, const Call& call);
void direct_reduce_scatter(Communicator& communicator, const Call& call);
void direct_reduce(Communicator& communicator, const Call& call);
void direct_gather(Communicator& communicator, const Call& call);
void direct_scatter(Communicator& communicator, const Call& call);
void direct_all_to_all(Communicator& communicator, const Call& call);
std::optional<Payload> split_payload(const Call& call, int rank, int size);

// staged_all_reduce.cpp, staged_reductions.cpp, staged_moves.cpp
void staged_all_reduce(Communicator& communicator, const Call& call);
void staged_reduce_scatter(Communicator& communicator, const Call& call);
void staged_reduce(Communicator& communicator, const Call& call);
void staged_all_gather(Communicator& communicator, const Call& call);
void staged_broadcast(Communicator& communicator, const Call& call);
void staged_gather(Communicator& communicator, const Call& call);
void staged_scatter(Communicator& communicator, const Call& call);
void staged_all_to_all(Communicator& communicator, const Call& call);

// oneshot_reductions.cpp, oneshot_moves.cpp
void oneshot_all_reduce(Communicator& communicator, const Call& call);
void oneshot_reduce_scatter(Communicator& communicator, const Call& call);
void oneshot_reduce(Communicator& communicator, const Call& call);
void oneshot_all_gather(Communicator& communicator, const Call& call);
void oneshot_broadcast(Communicator& communicator, const Call& call);
void oneshot_gather(Communicator& communicator, const Call& call);
void oneshot_scatter(Communicator& communicator, const Call& call);
void oneshot_all_to_all(Communicator& communicator, const Call& call);
void oneshot_barrier(Communicator& communicator, const Call& call);
std::optional<Payload> oneshot_payload(const Call& call, int rank, int size);

}  // namespace vccl
