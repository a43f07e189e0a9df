// Hashes of the elements that a call reads and writes, for a record that is to have them (VCCL_RECORD).
#pragma once

#include <cstdint>
#include <span>

#include "csrc_pg/collectives/call.hpp"
#include "recorder/flight_recorder.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Is the entry of a call in the flight recorder that gets the hashes; empty if none are wanted.
struct HashedEntry {
  FlightRecorder* recorder = nullptr;  // lives as long as the process
  std::uint64_t number = 0;
  explicit operator bool() const noexcept { return recorder != nullptr; }
};

/// Returns a hash of what the calls of one collective read, each in its turn.
std::uint64_t hash_of_inputs(std::span<const Call> calls, const Communicator& communicator);
/// Returns a hash of what the calls have written.
std::uint64_t hash_of_outputs(std::span<const Call> calls, const Communicator& communicator);
/// Returns the hash of a message of `count` elements.
std::uint64_t hash_of_message(std::uint8_t dtype, const void* elements, std::uint64_t count);

}  // namespace vccl
