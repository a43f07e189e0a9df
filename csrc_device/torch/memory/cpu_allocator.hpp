// The allocator of CPU tensors. Tensors made inside an operator of a card get the card's memory. Large
// tensors get shared memory if the program asked for that (runtime/host_sharing.hpp). All other tensors get
// the memory that they would have without vccl.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "csrc_device/torch/memory/kernel_memory.hpp"

namespace vdev {

/// Returns the process's CPU allocator, which replaces torch's at the first call. It serves UseKernelMemory
/// and shared memory, and passes all else to torch's allocator. A process that never runs an operator on a
/// card, and shares no CPU memory, keeps torch's allocator.
c10::Allocator* cpu_allocator();

/// Makes the CPU memory that the calling thread allocates come from `memory`, as long as this object lives.
/// OpenMP workers that a kernel starts are other threads and still get ordinary memory. Objects may be
/// nested.
class UseKernelMemory {
 public:
  explicit UseKernelMemory(KernelMemory& memory);
  ~UseKernelMemory();
  UseKernelMemory(const UseKernelMemory&) = delete;
  UseKernelMemory& operator=(const UseKernelMemory&) = delete;

 private:
  KernelMemory* previous_;
};

}  // namespace vdev
