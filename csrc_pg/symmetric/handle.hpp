// torch's object for one symmetric allocation of a group.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "csrc_pg/process_group/process_group.hpp"
#include "csrc_pg/symmetric/connection.hpp"
#include "csrc_pg/symmetric/signal_task.hpp"

namespace vccl::symmetric {

/// Signals run as tasks of the caller's current stream of the card. Without a timeout, that of the group
/// counts. Raises ValueError for ranks and channels that do not exist.
class Handle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  Handle(ProcessGroupVccl& group, int card, std::shared_ptr<Connection> connection);
  /// Blocks until the program's streams of the card have run what uses the peers' memory.
  ~Handle() override;

  /// The memory of a rank that has freed it can still be read and written, as on CUDA.
  std::vector<void*> get_buffer_ptrs() override;
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  std::size_t get_buffer_size() override { return connection_->buffer_bytes(); }
  std::size_t get_offset() override { return 0; }
  bool has_multicast_support() override;
  /// Returns null: the multimem operators reach all ranks, but there is no address that does.
  void* get_multicast_ptr() override { return nullptr; }
  void barrier(int channel, std::size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override;
  int get_rank() override { return connection_->members().rank; }
  int get_world_size() override { return connection_->members().size; }
  c10::Device get_device() override;
  const std::vector<int>& get_rank_to_global_rank() override { return global_ranks_; }
  int* get_rank_to_global_rank_dev() override { return global_ranks_.data(); }
  bool world_within_direct_access() override { return true; }

  const std::shared_ptr<Connection>& connection() const { return connection_; }
  /// Returns whether the handle was made with this group, and not with an earlier one of the same name.
  bool is_of(const ProcessGroupVccl& group) const;
  /// Checks `rank`, and puts a task on the current stream. `what` is for messages. A rank that has freed its
  /// memory is refused, unless `arrived` says that what the task waits for is there.
  void launch(const char* what, int rank, int channel, std::size_t timeout_ms, vdev::Start start,
              SignalTask::Body body, const std::function<bool()>& arrived = {});

 private:
  void check_channel(int channel) const;
  std::string freed_text(int rank) const;

  const int card_;
  std::shared_ptr<Connection> connection_;
  c10::weak_intrusive_ptr<ProcessGroupVccl> group_;
  std::vector<void*> buffers_, pads_;
  std::vector<int> global_ranks_;
};

}  // namespace vccl::symmetric
