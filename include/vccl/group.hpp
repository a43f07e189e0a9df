// What programs in C++ use of the process group (docs/cpp.md).
//
// The header is installed as <vccl/group.hpp> and includes nothing of the project. What it declares keeps its
// meaning from one release of vccl to the next.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace vccl {

/// Makes the process group of one rank, for tensors on cards and on the CPU. Returns when every rank has
/// called it.
///
/// `store` is where ranks meet: a c10d::FileStore, or a c10d::TCPStore. `timeout` bounds the meeting and
/// every collective. `name` stands in errors. The ranks use the collectives of c10d::Backend. A group that is
/// left when the process ends is closed then.
///
/// Throws c10d::DistBackendError if a rank has not come within the timeout.
c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             std::chrono::milliseconds timeout = std::chrono::minutes(30),
                                             const std::string& name = "default");

}  // namespace vccl
