// Circles among the calls of the ranks of this job, for VCCL_CHECK=order.
#pragma once

#include <cstdint>
#include <string>

namespace vccl {

enum class When : std::uint8_t {
  at_once,           // and asks the other hosts
  in_turn,           // at most once a second; the first rank of a host asks the other hosts now and then
  if_first_of_host,  // the same, but other ranks do nothing
};

/// Returns sentences about a circle that the calls of this job's ranks close, or an empty text. Reads the
/// recorders of the ranks on this host, which takes some milliseconds.
std::string circle_of_calls(When when);

}  // namespace vccl
