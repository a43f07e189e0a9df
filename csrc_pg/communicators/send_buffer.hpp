// Copies of sends, which complete before they are received.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc_pg/communicators/message_count.hpp"
#include "csrc_pg/communicators/send_memory.hpp"

namespace vccl {

/// Counts the copies of sends that are under way on one connection: those of a rank to one other rank, in the
/// order of one stream. Stands for NCCL's buffer of the connection: a send is complete when it and what is
/// under way before it fit into the buffer. Thread-safe.
class SendBuffer {
 public:
  /// NCCL_BUFFSIZE, unless it is set.
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  /// `under_way` counts the copies of all connections.
  SendBuffer(std::shared_ptr<SendMemory> memory, std::shared_ptr<MessageCount> under_way)
      : memory_(std::move(memory)), under_way_(std::move(under_way)) {}

  SendMemory& memory() const { return *memory_; }
  /// Call add() when a copy is sent, and remove() when it was received, or will not be.
  void add(std::size_t bytes);
  void remove(std::size_t bytes);
  /// Calls `fits` once all copies that are under way fit: within the call, or within a later remove(), on its
  /// thread. No lock is held meanwhile.
  void when_it_fits(std::function<void()> fits);

 private:
  const std::shared_ptr<SendMemory> memory_;
  const std::shared_ptr<MessageCount> under_way_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;                       // guarded by mutex_
  std::vector<std::function<void()>> waiting_;  // guarded by mutex_
};

}  // namespace vccl
