// The memory of copies of sends.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Hands out memory that peers on this host read in place. It is none of a card: the allocator of a card may
/// wait for a stream that waits for the send, counts what the program uses, and may be full. Thread-safe.
class SendMemory : public std::enable_shared_from_this<SendMemory> {
 public:
  /// Adds a region to the communicator. Where the system refuses one, memory of the process is used, which
  /// the transport copies once more.
  explicit SendMemory(Communicator& communicator);

  /// Returns memory that goes back with its last owner.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  static constexpr std::size_t kSmallest = 8 * 1024, kClasses = 10;  // powers of two, up to 4 MiB
  // Address space. Pages take memory from their first use on.
  static constexpr std::size_t kCapacity = std::size_t{256} << 20;

  std::byte* take_block(std::size_t size_class);
  void give_back(std::byte* block, std::size_t size_class);

  std::shared_ptr<vdev::Arena> arena_;  // null if the system has refused one
  std::mutex mutex_;
  std::size_t used_ = 0;                                     // guarded by mutex_
  std::array<std::vector<std::byte*>, kClasses> free_ = {};  // guarded by mutex_
};

}  // namespace vccl
