// The c10d backend: what torch.distributed calls.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "csrc_pg/coalescing.hpp"
#include "csrc_pg/communicators.hpp"
#include "csrc_pg/completion_hook.hpp"
#include "csrc_pg/options.hpp"
#include "csrc_pg/plan.hpp"
#include "csrc_pg/request.hpp"
#include "csrc_pg/work.hpp"

namespace vccl {

/// Checks arguments and says what each collective is; communicators, streams, handles and algorithms are
/// elsewhere. Its methods are in process_group.cpp (life, launch, barrier), process_group_reductions.cpp,
/// process_group_moves.cpp, process_group_messages.cpp (messages, coalescing), process_group_members.cpp
/// (groups from groups, hooks), and unsupported.cpp (what it refuses).
///
/// Serves tensors on cards and on the CPU, contiguous or not, of any size. Arguments that are wrong on this
/// rank alone raise at the call (ValueError, TypeError, NotImplementedError) and leave the group as it was.
/// What goes wrong between ranks raises DistBackendError where the collective is waited for, and at every
/// later call. Thread-safe; ranks must issue the collectives of a group in the same order.
class ProcessGroupVccl final : public c10d::Backend {
 public:
  using Options = vccl::Options;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// Returns when every rank of the group has called it, and raises DistBackendError if one has not within
  /// the timeout. The communicators of cards are made at their first collective.
  ProcessGroupVccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  ~ProcessGroupVccl() override;

  const std::string getBackendName() const override { return "vccl"; }
  /// A copy.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  c10::intrusive_ptr<Options> options() const { return options_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// Sparse COO tensors on the CPU: their sum, coalesced, in place.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// The parts of one list may differ in size; all ranks have to have the same sizes in mind.
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& lists,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  /// As with reduce_scatter, sizes may differ from rank to rank.
  WorkPtr allgather(TensorLists& lists, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& lists, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& lists, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& lists, const c10d::ScatterOptions& options) override;
  /// Splits are rows of the first dimension. They are given on every rank or on none.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Ranks meet in CPU memory whatever device the group uses, so that they agree on where; the collectives
  /// launched before, and the current stream of the device, come first.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Messages between two ranks (process_group_messages.cpp). A receive takes the first message with its tag,
  // in the order of the sender's calls. No call waits for another, nor for a collective: a rank may send to
  // itself, and two ranks may send to each other first and receive then.

  /// On a card the message goes once the current stream has come to this point.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  /// The sender is Work::sourceRank(). On a card, too, wait() blocks the host, which is to ask for it.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // What a thread calls in between is collected and launched together: messages, then collectives in order,
  // all on one device. Each of those calls returns a Work that cannot be waited for before the end, or none.

  bool supportsCoalescing() const override { return true; }
  /// Drops what the thread has collected so far: an exception has kept it from the end.
  void startCoalescing() override;
  /// The Work of them all; null where nothing was called.
  WorkPtr endCoalescing() override;
  /// Collects no more, and launches nothing.
  void cancel_coalescing();

  // Not offered: each raises NotImplementedError naming the operation (unsupported.cpp).
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override;
  void suspend() override;
  void resume() override;
  std::unordered_map<std::string, std::uint64_t> getMemoryStats() override;

  // Groups from this one (process_group_members.cpp). No communicator is made yet, and none is shared: the
  // child works whatever becomes of its parent.

  /// The group of `ranks` of this one, numbered in the order given; null on a rank that is not among them,
  /// which need not call. Groups with the same ranks and name are paired between ranks in the order in which
  /// they are made.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// A group of `size` ranks that meet at `store`, whichever groups they come from.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  /// The group without `excluded`, which may be gone and must not call. SHRINK_ABORT aborts this group first.
  /// Connects at once where a device is bound.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  /// How often this group was split.
  int split_count() const;
  /// Makes the communicator of `device`, which takes all ranks.
  void eagerConnectSingleDevice(at::Device device) override;

  /// One hook a group; see CompletionHook. The group waits for it when it is shut down.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Until everything launched has ended and the hook has returned for it. Raises DistBackendError when the
  /// hook does not return within the group's timeout.
  void waitForPendingWorks() override;

  bool supportsTensorAlloc(c10::DeviceIndex index) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

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
  WorkPtr launch(Request request, Plan plan);
  WorkPtr launch_message(Request request, MessageCall call);
  WorkPtr launch_batch(Batch batch);
  /// The end of the messages `calls`, and of `more` parts besides; the messages are under way.
  std::shared_ptr<JointEnd> begin_messages(MessageLane& lane, const char* name,
                                           std::vector<MessageCall> calls, int more, Milliseconds timeout,
                                           std::shared_ptr<Outcome> outcome);
  std::shared_ptr<const WorkVccl::Group> group_for_profiler() const;
  void record_for_profiler(const Request& request, std::uint64_t sequence) const;
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;
  std::string group_name() const;
  void leave(std::chrono::milliseconds patience) noexcept;
  void close(std::chrono::milliseconds patience) noexcept;

  c10::intrusive_ptr<Options> options_of_child(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  std::vector<std::uint64_t> global_ranks(const std::vector<int>& ranks) const;
  c10::intrusive_ptr<c10d::Store> store_of_child(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::string& purpose);
  void count_split(const std::string& name);
  /// Tells the hook, if there is one, once `outcome` is finished. For whatever is launched, before it can
  /// end.
  void watch_completion(const std::shared_ptr<Outcome>& outcome, c10d::OpType type, std::uint64_t sequence);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> message_sequence_{0};  // which ranks have no reason to agree on
  Coalescing coalescing_;
  mutable std::mutex children_mutex_;    // of the next three
  std::map<std::string, int> children_;  // how many were made for each purpose
  int splits_ = 0;
  std::string last_split_;  // its name
  std::unique_ptr<CompletionHook> hook_;
  std::atomic<CompletionHook*> watching_{nullptr};  // hook_, once it is there; stored with release
  Communicators communicators_;
};

}  // namespace vccl
