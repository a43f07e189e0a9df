// The process group, for programs in C++ (docs/cpp.md).
//
// The header is installed as <vccl/group.hpp> and includes nothing of the project. vccl keeps the meaning of
// these declarations from one release to the next (<vccl/version.hpp>). "Must" says what the caller has to
// do; every other sentence is a promise of vccl's.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace vccl {

/// Makes the process group of one rank, for tensors on cards and on the CPU. Every rank from 0 to `size` - 1
/// must call it in a process of its own, with the same `size`, `name` and store. Returns when all ranks have
/// called it.
///
/// `store` is where the ranks meet: a c10d::FileStore, or a c10d::TCPStore. `timeout` bounds the meeting and
/// every collective. Errors call the group `name`. The group has the collectives of c10d::Backend, which all
/// ranks must call in the same order. vccl closes a group that the program still has when the process ends.
///
/// Throws c10d::DistBackendError if a rank has not come within the timeout.
c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             std::chrono::milliseconds timeout = std::chrono::minutes(30),
                                             const std::string& name = "default");

}  // namespace vccl
