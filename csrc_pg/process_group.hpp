// The c10d backend: what torch.distributed calls.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "csrc_pg/communicators.hpp"
#include "csrc_pg/options.hpp"
#include "csrc_pg/plan.hpp"
#include "csrc_pg/work.hpp"

namespace vccl {

/// Checks arguments and says what each collective is; communicators, streams, handles and algorithms are
/// elsewhere. Its methods are in process_group.cpp (life, launch, barrier), process_group_reductions.cpp,
/// process_group_moves.cpp, and unsupported.cpp (what it refuses).
///
/// Serves tensors on cards and on the CPU, contiguous or not, of any size. Arguments that are wrong on this
/// rank alone raise at the call (ValueError, NotImplementedError) and leave the group as it was. What goes
/// wrong between ranks raises DistBackendError where the collective is waited for, and at every later call.
/// Thread-safe; ranks must issue the collectives of a group in the same order.
class ProcessGroupVccl final : public c10d::Backend {
 public:
  using Options = vccl::Options;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// Makes no communicator yet.
  ProcessGroupVccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  ~ProcessGroupVccl() override;

  const std::string getBackendName() const override { return "vccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  c10::intrusive_ptr<Options> options() const { return options_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  /// Ranks meet in CPU memory whatever device the group uses, so that they agree on where; the collectives
  /// launched before, and the current stream of the device, come first.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Not offered: each raises NotImplementedError naming the operation (unsupported.cpp).
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(TensorLists&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors&, TensorLists&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors&, TensorLists&, const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<std::int64_t>&, std::vector<std::int64_t>&,
                        const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors&, int, int) override;
  WorkPtr recv(Tensors&, int, int) override;
  WorkPtr recvAnysource(Tensors&, int) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>&,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>&,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&, const int&,
                                          const int&) override;
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>&, int,
                                           const c10::intrusive_ptr<c10d::Backend::Options>&) override;
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&&) override;
  void waitForPendingWorks() override;
  at::Tensor allocateTensor(long, at::TensorOptions) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  void suspend() override;
  void resume() override;
  std::unordered_map<std::string, std::uint64_t> getMemoryStats() override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;
  void enableCollectivesTiming() override;
  c10d::ErrorType getError() override;

  /// Frees every waiter of this group, here and on the other ranks; the group stays failed. From any thread.
  void abort() override;
  /// Lets launched collectives come to their end (their timeouts bound that) and leaves the group.
  /// Idempotent.
  void shutdown() override;

  /// For the interpreter's exit: shuts down every group of the process that is still there, within `patience`
  /// each.
  static void shutdown_all(std::chrono::milliseconds patience);

 private:
  struct Request {
    c10d::OpType type;
    const char* name;
    c10::Device device;
    Tensors inputs, outputs;
    std::chrono::milliseconds timeout;
    bool async;
    std::vector<vdev::Event> after = {};  // CPU only: points of other streams to wait for
    bool blocks_host = false;
  };
  WorkPtr launch(Request request, Plan plan);
  void record_for_profiler(const Request& request) const;
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;
  std::string group_name() const;
  void leave(std::chrono::milliseconds patience) noexcept;

  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  Communicators communicators_;
};

}  // namespace vccl
