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
  /// NCCL_STEPS, and NCCL_BUFFSIZE unless it is set. A message takes whole steps, and one at least.
  static constexpr std::size_t kSteps = 8, kBytes = std::size_t{4} << 20, kStepBytes = kBytes / kSteps;

  /// `under_way` counts the copies of all connections that destroying the group waits for.
  SendBuffer(std::shared_ptr<SendMemory> memory, std::shared_ptr<MessageCount> under_way)
      : memory_(std::move(memory)), under_way_(std::move(under_way)) {}

  SendMemory& memory() const { return *memory_; }
  MessageCount& under_way() const { return *under_way_; }
  /// Call add() when a copy is sent, and then one of the others: when it was received, or when it has failed,
  /// as then all copies do that are under way.
  void add(std::size_t bytes);
  void received(std::size_t bytes);
  void failed();
  /// Calls `fits` once all copies that are under way fit: within the call, or within a later received(), on
  /// its thread. Never calls it after failed(). No lock is held meanwhile.
  void when_it_fits(std::function<void()> fits);

 private:
  static std::size_t steps_of(std::size_t bytes);

  const std::shared_ptr<SendMemory> memory_;
  const std::shared_ptr<MessageCount> under_way_;
  std::mutex mutex_;
  std::size_t steps_ = 0;                       // guarded by mutex_
  bool failed_ = false;                         // guarded by mutex_
  std::vector<std::function<void()>> waiting_;  // guarded by mutex_
};

}  // namespace vccl
