// Circles among the calls of the ranks of this job, for VCCL_CHECK=order.
#pragma once

#include <string>

namespace vccl {

/// Returns sentences about a circle that the calls of this job's ranks close, or an empty text. Reads the
/// recorders of the ranks on this host, which takes some milliseconds: at most once a second, unless
/// `at_once`. With `at_once`, or now and then on the first rank of a host, it also asks the other hosts.
std::string circle_of_calls(bool at_once);

}  // namespace vccl
