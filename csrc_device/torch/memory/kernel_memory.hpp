// The memory that one run of a CPU kernel allocates.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <memory>

#include "csrc_device/runtime/card.hpp"

namespace vdev {

/// Memory that was allocated for a result before the kernel runs. The kernel gets this memory at its request
/// number `ordinal` (from 0) among its requests for `bytes` bytes.
struct Loan {
  void* data = nullptr;
  std::size_t bytes = 0;
  int ordinal = 0;
  int requests = 0;  // requests for `bytes` bytes that the kernel has made
  bool lent = false;
};

/// Says where the memory comes from that a kernel allocates, and which of it is a result's.
///
/// The memory of a loan has a context of its own (its Loan). oneDNN allocates with raw_allocate(), frees the
/// memory at any later time, and must therefore never get a loan: raw_allocate() throws for memory with a
/// context, which is_refused_loan() recognises.
class KernelMemory {
 public:
  /// Allocates from the program's pool of the calling thread's current stream on `card` at each allocation;
  /// with card -1, from torch's own allocator.
  explicit KernelMemory(int card) : card_(card) {}
  /// Allocates from the scratch pool of `queue`, which runs the kernel as a task.
  KernelMemory(int card, std::shared_ptr<Queue> queue) : card_(card), queue_(std::move(queue)) {}
  KernelMemory(const KernelMemory&) = delete;
  KernelMemory& operator=(const KernelMemory&) = delete;

  /// Lends `loan` to the kernel. It must live as long as this object.
  void lend(Loan& loan) { loans_.push_back(&loan); }
  /// Makes the object write down what the kernel allocates.
  void keep_log() { logs_ = true; }
  /// Returns how many requests for `bytes` bytes came before the last one that returned `data`; -1 if there
  /// was none. Needs keep_log().
  int ordinal_of(const void* data, std::size_t bytes) const;

  /// `plain` is torch's own allocator.
  c10::DataPtr allocate(std::size_t bytes, c10::Allocator& plain);

 private:
  struct Entry {
    std::size_t bytes;
    const void* data;
  };
  const int card_;
  const std::shared_ptr<Queue> queue_;
  bool logs_ = false;
  c10::SmallVector<Loan*, 4> loans_;
  c10::SmallVector<Entry, 8> log_;
};

/// Returns whether `text` is the text of the error that raw_allocate() throws when it gets a loan.
bool is_refused_loan(const char* text);

}  // namespace vdev
