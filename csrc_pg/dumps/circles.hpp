// Circles among the calls of the ranks on this machine, for VCCL_CHECK=order.
#pragma once

#include <string>

namespace vccl {

/// Returns sentences about a circle that the calls of this job's ranks on this machine close, or an empty
/// text. Reads the recorders of these ranks, which takes some milliseconds: at most once a second, unless
/// `at_once`.
std::string circle_of_calls(bool at_once);

}  // namespace vccl
