// Card memory that several processes use, as with CUDA's interprocess memory: who shares it, who holds it,
// and when its owner may use it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc_device/runtime/sharing/ledger.hpp"

namespace vdev {

/// Is a message by which a process shares a range of card memory. It consists of plain values, which the
/// receiver checks. Each message is to be received once.
struct SharedRange {
  std::string memory;        // the bytes of a MemoryName
  std::uint64_t offset = 0;  // in bytes from the beginning of the card's memory
  std::uint64_t bytes = 0;   // 0: the message only names a card
  std::uint32_t slot = 0;    // slot and generation are the block's Lease
  std::uint32_t generation = 0;
};

/// Holds a range of memory for this process: the owner of the block does not use it again while a process
/// holds it. The range stays mapped until the last hold on memory of that process is gone, and if the owner
/// has ended in between, its pages stay, too. In a child of fork(), the copy of an object does nothing.
class HeldRange {
 public:
  virtual ~HeldRange() = default;
  std::byte* data() const { return data_; }
  /// Returns the number that this process has for the physical card.
  int card() const { return card_; }

 protected:
  HeldRange(std::byte* data, int card) : data_(data), card_(card) {}

 private:
  std::byte* data_;
  int card_;
};

/// Returns a message for another process about the range [p, p + bytes), which is to lie in one live block of
/// `card`, or in a range that this process holds. The block is not used again before the message was
/// received, and the receivers have let go of it. A message that nobody receives keeps the block until the
/// process ends. The caller has to synchronise before, so that the receiver finds in the memory what was
/// written. Throws InvalidArgument for other memory, BadFork, and CardError when the system refuses.
SharedRange share_range(int card, const std::byte* p, std::size_t bytes);

/// Receives a message that has bytes. In the process that owns the block, the result is its own memory.
/// Throws CardError, which says why the memory cannot be used: the owner has ended, or belongs to another
/// machine, pid namespace or user. Throws InvalidArgument if this process does not see the physical card, and
/// BadFork. Never waits for the owner, apart from a lock that the owner holds for microseconds.
std::unique_ptr<HeldRange> receive_range(const SharedRange& range);

/// Receives a message without using the memory. Does nothing if the owner has ended or has freed the block.
void decline_range(const SharedRange& range);

/// Returns the card of this process that a message names, and checks nothing else. Throws what
/// receive_range() throws.
int card_of_range(const SharedRange& range);

/// Returns the card on which `p` lies for this process, in its own memory or in memory that it holds, or -1.
int card_showing(const void* p) noexcept;

/// Makes blocks that the program has freed, and that no other process uses any more, free for use again. The
/// allocators do that also by themselves before they take more memory.
void collect_shared_blocks();

}  // namespace vdev
