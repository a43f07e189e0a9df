// The lines of a record's file, which docs/inside/record.md describes. Each is a value of JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recorder/flight_details.hpp"
#include "recorder/flight_entry.hpp"
#include "recorder/spool.hpp"

namespace vccl::records {

inline constexpr int kRecordVersion = 1;

/// Returns the first line. All times of the file count from `start_ns` of the steady clock.
std::string header_line(const FlightProcess& process, const SpoolSettings& settings, std::int64_t start_ns);
std::string group_line(const FlightGroup& group, std::int64_t start_ns);
std::string closed_line(std::uint64_t serial);
/// Describes a call, which many operations may have in common.
std::string call_line(std::uint64_t call, const FlightEntry& entry,
                      const std::optional<FlightDetails>& details, const SpoolSettings& settings);
/// One operation, as far as it is known. One that is over has its end.
std::string operation_line(const FlightEntry& entry, std::uint64_t call, std::int64_t start_ns);
/// The end of an operation that was under way when its line was written.
std::string end_line(const FlightEntry& entry, std::int64_t start_ns);
std::string unknown_end_line(std::uint64_t number);
/// Says that so many operations before `next` were lost.
std::string lost_line(std::uint64_t lost, std::uint64_t next);
/// The last line of a process that has ended its record itself.
std::string finished_line(std::uint64_t unrecorded, std::int64_t start_ns);

/// Returns the bytes of an entry that its operation has in common with others of the same call.
std::string common_part(FlightEntry entry);

}  // namespace vccl::records
