// What processes that share memory tell each other: who has touched it, and what came before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sanitizer/memory/clock.hpp"
#include "sanitizer/memory/footprint.hpp"

namespace sanitizer {

/// Numbers a process. Two processes have different numbers, also if they have the same process id.
using ProcessNumber = std::uint64_t;
/// Numbers a lane among those of all processes, or a meeting of processes, such as the all_reduces of a
/// group.
using LaneNumber = std::uint64_t;

/// Says that the actions of `lane` up to `time` come before a point.
///
/// Of a meeting, it says that what the members have published up to that number does. A member may not have
/// come there yet: what it will publish counts, because the point is behind the meeting's end.
struct ClockEntry {
  LaneNumber lane = 0;
  Time time = 0;
  std::uint32_t publishers = 0;  // of a meeting: how many processes publish; 0 for a lane
};
using SharedClock = std::vector<ClockEntry>;

/// What comes before an end that others wait for: a member's part in a meeting, the record of an event, or a
/// host that tells others something.
struct Publication {
  LaneNumber meeting = 0;
  Time number = 0;
  SharedClock clock;
};

/// Describes an access to memory that several processes use.
struct SharedAccess {
  std::uint64_t block = 0;  // by which all processes know the allocation
  Footprint memory;         // at the addresses of the process that owns the memory
  bool writes = false;
  LaneNumber lane = 0;
  Time time = 0;
  SharedClock clock;  // what came before it
  std::string text;   // for the report; only the caller reads it
};

/// A record of a journal. One of the two is there.
struct JournalRecord {
  ProcessNumber process = 0;
  std::optional<Publication> publication;
  std::optional<SharedAccess> access;
};

std::string to_bytes(const JournalRecord& record);
/// Returns nothing for bytes that to_bytes() has not made.
std::optional<JournalRecord> record_from(std::string_view bytes);

std::string to_bytes(const SharedClock& clock);
std::optional<SharedClock> clock_from(std::string_view bytes);

}  // namespace sanitizer
