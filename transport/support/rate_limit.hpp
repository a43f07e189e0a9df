// A limit for log messages that strangers can cause: one message for each source and minute.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "transport/deadline.hpp"

namespace vccl {

/// Remembers which sources caused a message lately. Not thread-safe.
class RateLimit {
 public:
  static constexpr Milliseconds kPeriod{60'000};
  /// The largest number of sources that are remembered. While there are so many, further sources cause no
  /// messages.
  static constexpr std::size_t kMostSources = 256;

  /// Returns whether a message about `source` may be written at `now`, and counts it as written. Returns
  /// false if there was one in the last minute.
  bool allows(const std::string& source, Clock::time_point now = Clock::now()) {
    std::erase_if(told_, [&](const auto& entry) { return now - entry.second >= kPeriod; });
    return told_.size() < kMostSources && told_.emplace(source, now).second;
  }

 private:
  std::unordered_map<std::string, Clock::time_point> told_;
};

}  // namespace vccl
