// Where CPU tensors get their memory: those made inside an operator of a card from the card, large ones from
// shared memory where that was asked for (runtime/host_sharing.hpp), and all others as without vccl.
#pragma once

#include <c10/core/Allocator.h>

namespace vdev {

/// torch's CPU allocator from the first call on: it serves AllocateOnCard and shared memory, and is what it
/// was otherwise. A process that never runs an operator on a card nor shares CPU memory keeps torch's own.
c10::Allocator* cpu_allocator();

/// While one lives, what the calling thread allocates as CPU memory comes from `card`, for its current stream
/// there. OpenMP workers that a kernel starts are other threads and keep allocating ordinary memory. Nests.
class AllocateOnCard {
 public:
  explicit AllocateOnCard(int card);
  ~AllocateOnCard();
  AllocateOnCard(const AllocateOnCard&) = delete;
  AllocateOnCard& operator=(const AllocateOnCard&) = delete;

 private:
  int previous_;
};

}  // namespace vdev
