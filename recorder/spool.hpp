// The record of a rank in a file: what its groups have done, for as long as somebody records.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/fork.hpp"
#include "recorder/flight_recorder.hpp"

namespace vccl {

/// Says why a directory cannot take a record, as a whole sentence.
struct SpoolRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SpoolSettings {
  std::string directory;
  bool hashes = false;  // whether the elements are hashed, too
  /// Returns torch's name of a dtype, or null for a number that is no dtype's.
  const char* (*dtype_name)(std::uint8_t dtype) = nullptr;
  std::string library;                     // the name and the version of what writes the record
  std::chrono::milliseconds interval{20};  // between two looks at the recorder
};

class SpoolFile;

/// Copies the entries of a flight recorder to a file of the directory, from now on. A thread does that, which
/// no operation waits for. What the ring has lost before the thread came to it is counted in the file. The
/// file is made once the process knows its rank and its job.
///
/// Where the file cannot be made or written, one line on stderr says so, and the job goes on. In a forked
/// child of the process that made the object, no function does anything.
class Spool {
 public:
  /// Makes the directory if it is not there. Throws SpoolRefused if it cannot be made or written to.
  Spool(FlightRecorder& recorder, SpoolSettings settings);
  /// Ends the record without waiting for operations that are under way.
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  /// Ends the record once all operations are over that it has, or `patience` has passed. Further calls do
  /// nothing. Thread-safe.
  void end(std::chrono::milliseconds patience) noexcept;

 private:
  void run();

  const base::ProcessMark made_;
  FlightRecorder& recorder_;
  const std::chrono::milliseconds interval_;
  std::unique_ptr<SpoolFile> file_;  // used by the thread alone
  std::mutex mutex_;                 // guards the next four members
  std::condition_variable changed_;
  bool ending_ = false, joined_ = false;
  std::chrono::steady_clock::time_point end_by_;
  std::thread thread_;
};

}  // namespace vccl
