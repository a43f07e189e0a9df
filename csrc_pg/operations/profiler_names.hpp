// The names under which the profiler shows operations.
//
// Programs that read profiles look for the names of ProcessGroupNCCL. In pose the operations have them; they
// differ between the places where the profiler shows an operation.
#pragma once

#include <string>
#include <string_view>

namespace vccl {

/// Returns the name of the range over the launch: "vccl:all_reduce", or "nccl:all_reduce" in pose.
std::string title_of(std::string_view operation);

/// Returns the name of the record with the operation's parameters: "all_reduce", or "allreduce" in pose.
std::string record_of(std::string_view operation);

/// Returns the name of the operation's run on a stream: "vccl.all_reduce", or "ncclDevKernel_all_reduce" in
/// pose.
std::string run_of(std::string_view operation);

}  // namespace vccl
