// The host's memory that streams read and write: the other side of asynchronous copies, and tensors of
// asynchronous collectives on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc_device/torch/races/watch.hpp"

namespace vdev::races {

/// Follows the memory of a CPU tensor from now on: every operator on the CPU that touches it is an access of
/// the calling thread, for as long as the tensor's storage lives.
void follow(const at::Tensor& on_host);
/// Returns whether the memory of a CPU tensor is followed.
bool is_followed(const at::Tensor& on_host);
/// Describes an access to a CPU tensor whose memory is followed.
Touched touched_on_host(const at::Tensor& on_host, bool writes);
/// Call this when the program takes the address of a CPU tensor's memory, as numpy() does: counts as a read.
void note_pointer_taken(const at::Tensor& on_host, const char* call);

/// Stops following anything.
void forget_host_memory();

}  // namespace vdev::races
