// Log messages on stderr, one line each, if VCCL_DEBUG asks for them.
#pragma once

#include <cstdint>
#include <string>

#include "transport/variables.hpp"

namespace vccl {

/// Writes messages for one rank of one group: "[vccl] rank 0 (default_pg): ...". Thread-safe.
class Log {
 public:
  Log() = default;
  /// `rank` is the rank's number in the job.
  Log(LogLevel level, std::uint64_t rank, const std::string& group);
  void warn(const std::string& text) const noexcept { write(LogLevel::warn, text); }
  void info(const std::string& text) const noexcept { write(LogLevel::info, text); }
  /// Writes what a user has to know whatever VCCL_DEBUG is.
  void always(const std::string& text) const noexcept { write(LogLevel::none, text); }

 private:
  void write(LogLevel level, const std::string& text) const noexcept;

  LogLevel level_ = LogLevel::none;
  std::string prefix_;
};

}  // namespace vccl
