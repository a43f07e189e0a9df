// The file of a rank's record, and what has been written to it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/descriptor.hpp"
#include "recorder/flight_reader.hpp"
#include "recorder/flight_recorder.hpp"
#include "recorder/spool.hpp"

namespace vccl {

/// Writes what is new in the recorder at each turn. Used by one thread at a time.
class SpoolFile {
 public:
  /// Makes the directory if it is not there. Throws SpoolRefused.
  SpoolFile(FlightRecorder& recorder, SpoolSettings settings);

  /// Writes the entries since the last turn, and the ends of those that were under way. Does nothing before
  /// the process has a rank and a job, and after a failure.
  void turn(bool last) noexcept;
  /// Returns whether operations are under way whose ends the file does not have yet.
  bool waits() const noexcept { return !under_way_.empty(); }
  /// Writes the last line. Nothing may follow.
  void finish() noexcept;

 private:
  bool open();
  void read(bool last);
  void write_groups();
  void write_operation(const FlightEntry& entry);
  void write_ends();
  std::uint64_t call_of(const FlightEntry& entry);
  void flush();
  void fail(const std::string& why) noexcept;

  FlightRecorder& recorder_;
  const SpoolSettings settings_;
  const FlightReader reader_;
  const std::int64_t start_ns_;
  std::string path_;
  base::FileDescriptor file_;
  bool failed_ = false;
  std::int64_t written_ = 0;  // bytes of whole lines
  std::string lines_;         // those that are not written yet
  std::uint64_t next_;        // the number of the next entry
  std::uint64_t last_group_ = 0;
  std::set<std::uint64_t> closed_;
  std::uint64_t calls_ = 0;
  std::unordered_map<std::string, std::uint64_t> known_calls_;  // by what their operations have in common
  std::vector<std::uint64_t> under_way_;                        // the numbers of operations without an end
};

}  // namespace vccl
