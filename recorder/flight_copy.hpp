// What was read of a flight recorder as bytes, for a reader on another host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "recorder/flight_reader.hpp"

namespace vccl {

/// The largest number of bytes of a copy.
inline constexpr std::size_t kMostCopied = 256 * 1024;

/// Returns the snapshot's facts, its newest entries and their groups. Of stacks it has the innermost frames.
/// Entries that are not over go before those that are. `now_ns` is the steady clock of this host.
std::string encode_copy(const FlightSnapshot& snapshot, std::int64_t now_ns);

/// Reads a copy. The times are moved to the clock of this host, where it is `now_ns`. Whatever the bytes say,
/// all counts, places and texts of the result may be used as they are. Throws FlightRefused for bytes that
/// are no copy, or another version's.
FlightSnapshot decode_copy(std::string_view bytes, std::int64_t now_ns);

}  // namespace vccl
