// The description of an algorithm, by which the selector chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "csrc_pg/collectives/call.hpp"

namespace vccl {

/// The bytes that travel with a rank's announcement (Announcement::payload): their number, on which all ranks
/// agree, and the data that this rank puts there.
struct Payload {
  std::size_t bytes = 0;
  std::span<const std::byte> data[2] = {};  // one behind the other
};

/// Where an algorithm works.
enum class Reach : std::uint8_t {
  anywhere,   // it uses the ring
  announced,  // it uses Peers, and HostRing if there are several hosts, with any memory
  one_host,   // it uses Peers, with any memory
  mapped,     // it uses Peers, and every rank must be able to address every rank's buffers
  across,     // it uses HostRing, and Peers on each host as `mapped` does
};

/// Returns whether an algorithm with this reach can do a call only if the buffers of all ranks are mapped.
constexpr bool needs_mapping(Reach reach) {
  return reach == Reach::mapped || reach == Reach::across;
}

/// One way to do one collective. `run` works inside an Operation with the call's window (call.hpp), and
/// returns when this rank's output is complete. The blocks that it posted last may still be on their way; the
/// Operation drains them. The call must be valid.
struct Algorithm {
  const char* name;  // the family's name in VCCL_ALGO: "ring"
  Collective collective;
  Reach reach;
  void (*run)(Communicator& communicator, const Call& call);
  // Returns the payload that a rank sends along, and nothing if the algorithm cannot do the call. Null if the
  // algorithm sends nothing along and can do every call.
  std::optional<Payload> (*payload)(const Call& call, int rank, int size) = nullptr;
};

/// Returns every algorithm there is (selection/algorithm_list.hpp).
std::span<const Algorithm> algorithms() noexcept;

}  // namespace vccl
