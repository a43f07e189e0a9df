// The c10d backend, which torch.distributed calls.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/torch/torch_version.hpp"
#include "csrc_pg/arguments/nccl_rules.hpp"
#include "csrc_pg/communicators/communicators.hpp"
#include "csrc_pg/dumps/dump_requests.hpp"
#include "csrc_pg/dumps/held_records.hpp"
#include "csrc_pg/handles/abort_hooks.hpp"
#include "csrc_pg/handles/completion_hook.hpp"
#include "csrc_pg/handles/success_hooks.hpp"
#include "csrc_pg/handles/work.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/extra_time.hpp"
#include "csrc_pg/operations/group_order.hpp"
#include "csrc_pg/operations/recording.hpp"
#include "csrc_pg/operations/request.hpp"
#include "csrc_pg/process_group/options.hpp"
#include "csrc_pg/tasks/activity_label.hpp"
#include "csrc_pg/tasks/coalescing.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"
#include "csrc_pg/tasks/pair_meetings.hpp"

namespace vccl {

/// Checks the arguments of each collective and says what the collective does. Communicators, streams, handles
/// and algorithms are elsewhere. The methods are in process_group.cpp (creation and end of a group, launch),
/// barrier.cpp, reductions.cpp, moves.cpp, messages.cpp (messages, coalescing), members.cpp (groups made from
/// groups, hooks) and unsupported.cpp (methods that raise NotImplementedError).
///
/// Takes tensors on cards and on the CPU, contiguous or not, of any size. Arguments that are wrong on this
/// rank alone raise at the call (ValueError, TypeError, NotImplementedError) and leave the group as it was. A
/// failure between ranks raises DistBackendError where the collective is waited for, and at every later call.
/// Thread-safe, but all ranks must issue the collectives of a group in the same order.
class ProcessGroupVccl final : public vdev::torch_version::Backend {
 public:
  using Options = vccl::Options;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// Makes the group. Returns when every rank of the group has called the constructor, and raises
  /// DistBackendError if a rank has not within the timeout. The communicator of a card is made at the card's
  /// first collective.
  ///
  /// `relatives` are other groups of this process. The constructor does not wait for ranks that these groups
  /// know to be dead.
  ProcessGroupVccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   c10::intrusive_ptr<Options> options,
                   const std::vector<c10::intrusive_ptr<ProcessGroupVccl>>& relatives = {});
  ~ProcessGroupVccl() override;

  /// Returns "vccl", or "nccl" where the cards pose as CUDA.
  const std::string getBackendName() const override;
  /// Returns a copy.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  c10::intrusive_ptr<Options> options() const { return options_; }
  /// Returns the name that errors give the group. It does not change after the group was made. It is the
  /// group's description if a person gave one, otherwise the name that torch numbers the group with.
  const std::string& group_name() const { return name_; }
  /// Returns whether the group has a communicator of a card, or has sent messages between cards.
  bool is_initialized() const { return !communicators_.used_cards().empty(); }
  /// Returns whether the group refuses what NCCL refuses, and does otherwise what NCCL does otherwise.
  bool is_strict() const { return nccl_.on(); }
  /// Returns the names that texts give the ranks of the group.
  const RankNames& names() const { return communicators_.names(); }
  /// Returns a random text that the ranks of this group have in common, and no other group has.
  const std::string& id() const { return communicators_.id(); }
  /// Raises DistBackendError if another rank's n-th call of `kind` on this group differs from this rank's.
  /// `lists` are the global ranks of the groups that the call makes.
  void agree_on_call(const std::string& kind, const std::string& call,
                     const std::vector<std::vector<std::uint64_t>>& lists);
  /// Returns the ranks that are known to have died or left, each with the text that says so: "rank 1 (pid 77)
  /// died".
  std::map<int, std::string> ended_ranks() const;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// Replaces a sparse COO tensor, on the CPU or on a card, by the coalesced sum (or mean) over all ranks.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// Takes lists whose chunks may differ in size. All ranks must give the same sizes.
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& lists,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  /// Takes chunks whose sizes may differ from rank to rank, as reduce_scatter does.
  WorkPtr allgather(TensorLists& lists, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& lists, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& lists, Tensors& inputs, const c10d::GatherOptions& options) override;
  /// Gathers into one tensor of the destination, which has the chunks of all ranks one after the other.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& lists, const c10d::ScatterOptions& options) override;
  /// Takes splits in rows of the first dimension. Either every rank gives splits, or none does.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Launches a barrier, which ends when every rank has called it. The ranks meet in CPU memory even if the
  /// group uses cards, so that all ranks use the same communicator. The barrier comes after the collectives
  /// that were launched before, and after the tasks on the current stream of the device.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Messages between two ranks (process_group/messages.cpp). A receive takes the first message with its tag,
  // in the order of the sender's calls, from cards if its tensor is on a card, and else from the CPU. No call
  // waits for another message or for a collective. So a rank may send to itself, and two ranks may both send
  // to each other before they receive.

  /// Sends a tensor. On a card, the message goes once the current stream has come to this point.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  /// Receives from any rank; Work::sourceRank() is the sender. wait() blocks the host on a card, too, because
  /// the caller then asks for the sender.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Coalescing: the calls of a thread between startCoalescing() and endCoalescing() are collected and
  // launched together, first the messages and then the collectives in order. All calls must be on one device.
  // Each asynchronous call returns a Work that cannot be waited for before endCoalescing(), and any other
  // call returns none.

  bool supportsCoalescing() const override { return true; }
  /// Begins to collect. Drops the calls that the thread has collected so far: an exception has kept the
  /// thread from endCoalescing().
  void startCoalescing() override;
  /// Launches the collected calls and returns one Work for all, or null if nothing was called.
  WorkPtr endCoalescing() override;
  /// Stops collecting, and launches nothing.
  void cancel_coalescing();

  // Each of these raises NotImplementedError, which names the operation (unsupported.cpp).
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override;
  void suspend() override;
  void resume() override;
  std::unordered_map<std::string, std::uint64_t> getMemoryStats() override;

  // Groups made from this group (process_group/members.cpp). The new group has its own communicators, so that
  // it works whatever becomes of its parent.

  /// Returns the group of `ranks` of this group, numbered in the order given. Returns null on a rank that is
  /// not among `ranks`; such a rank need not call. If there are several groups with the same ranks and name,
  /// the n-th that one rank makes is the n-th that every other rank makes.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// Returns a group of `size` ranks that meet at `store`, whichever groups they come from.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  /// Returns the group without the ranks `excluded`, which may be gone and must not call. SHRINK_ABORT aborts
  /// this group first. If a device is bound, the call also connects the new group's communicator of the
  /// device.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  /// Returns how often this group was split.
  int split_count() const;
  /// Counts a split. Further calls with the same name count once.
  void count_split(const std::string& name);
  /// Makes the communicator of `device`. All ranks must call this.
  void eagerConnectSingleDevice(at::Device device) override;

  /// Sets the group's only hook; see CompletionHook. The group waits for the hook when it is shut down.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Blocks until everything launched has ended and the hook has returned for it. Raises DistBackendError if
  /// the hook does not return within the group's timeout.
  void waitForPendingWorks() override;

  /// Sets a hook that is called when the first operation of the group fails, and by abort(); see AbortHooks.
  void registerAbortHook(std::int64_t id, AbortHooks::Hook hook) override;
  void unregisterAbortHook(std::int64_t id) override;
  /// Returns false, although hooks can be set: torch's flight recorder would set one that writes a dump at
  /// every failure. That takes seconds, and a process that ends meanwhile dies of it.
  bool supportsAbortHooks() const override { return false; }
  /// Sets a hook that is called for each operation that succeeds; see SuccessHooks.
  void registerCompletionHook(std::int64_t id, SuccessHooks::Hook hook) override;
  void unregisterCompletionHook(std::int64_t id) override;
  bool supportsCompletionHooks() const override { return true; }

  bool supportsTensorAlloc(c10::DeviceIndex index) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  /// Makes the timeouts of operations longer until the next one has ended; see ExtraTime.
  void addEphemeralTimeout(const std::chrono::milliseconds& time) override;
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;
  /// Makes timing() true, and does nothing else: the time of operations is always measured.
  void enableCollectivesTiming() override;
  /// Returns whether the program has asked for the times of operations.
  bool timing() const { return timing_.load(std::memory_order_relaxed); }
  /// Returns REMOTE_ERROR for a timeout of another rank, and TIMEOUT for one of this rank.
  c10d::ErrorType getError() override;

  /// Ends the waits for this group, here and on the other ranks; the group stays failed. May be called from
  /// any thread. The program counts as knowing all failures so far, so that reading tensors of those
  /// operations no longer raises. The failures that the abort itself causes are raised until shutdown().
  void abort() override;
  /// Waits until the launched collectives have ended, which their timeouts bound, and leaves the group.
  /// Further calls do nothing.
  void shutdown() override;

  /// Call this when the interpreter exits. Shuts down every group of the process that is still there, within
  /// `patience` each.
  static void shutdown_all(std::chrono::milliseconds patience);

  // What operators beside c10d's use: those of symmetric memory (csrc_pg/symmetric/).

  /// Returns the communicator of the CPU, which was made with the group. Raises DistBackendError once the
  /// group has failed or was closed.
  std::shared_ptr<Communicator> host_communicator();
  const std::shared_ptr<vdev::FailureOwner>& failures() const { return failures_; }
  std::chrono::milliseconds timeout() const { return timeout_.load(); }
  /// Launches `plan`, which reads `inputs` and writes `outputs`, as a synchronous collective of that name.
  void launch_plan(const char* name, Tensors inputs, Tensors outputs, CollectivePlan plan);

  /// Says whether NaN and infinity in the inputs of later operations is an error. At first VCCL_CHECK says
  /// it.
  void check_nan(bool wanted) { checks_nan_.store(wanted, std::memory_order_relaxed); }
  /// Returns whether the operation of `work` was launched with this timeout. Raises TypeError for a Work of
  /// another backend.
  static bool verify_work_timeout(const c10::intrusive_ptr<c10d::Work>& work,
                                  const std::chrono::milliseconds& timeout);

  /// Keeps another backend until this group is destroyed, and then releases it without the GIL.
  void keep(c10::intrusive_ptr<c10d::Backend> backend) { kept_ = std::move(backend); }

 private:
  /// Runs `call`, which begins an operation, as with_torch_errors() does. If the operation cannot begin,
  /// because the group has failed, the abort hooks are called.
  template <typename Call>
  WorkPtr begin(Call&& call) {
    try {
      return with_torch_errors(std::forward<Call>(call));
    } catch (const c10::DistBackendError&) {
      AbortHooks::failed(abort_hooks_);
      throw;
    }
  }
  /// Notes for VCCL_CHECK=order at which place of the group's order the collective is called. About once a
  /// second it also aborts the group and throws Error(mismatch) if calls of the ranks that it can see close a
  /// circle.
  void put_in_order(Request& request, CollectivePlan& plan);
  /// Returns what the error of destroy_process_group() says of such a circle, or an empty text.
  std::string circle_at_the_end() const;
  std::string told_of(const std::string& circle) const;
  WorkPtr launch(Request request, CollectivePlan plan);
  WorkPtr launch_message(Request request, MessageCall call);
  WorkPtr launch_batch(Batch batch);
  /// Returns whether the caller's current stream of the card `device` is captured.
  static bool is_captured(c10::Device device);
  /// Returns whether a barrier on `card` waits for what was launched on this communicator.
  bool comes_before_barrier(const DeviceCommunicator& entry, int card) const;
  void watch_barrier(int card);
  /// Puts the plans of a checked request into the graph. Takes the place of launch() while the current stream
  /// is captured.
  WorkPtr capture(Request request, DeviceCommunicator& where, std::vector<CollectivePlan> plans,
                  std::vector<FlightEntry> entries);
  /// Messages that are to begin together, and an end that is reached when they and `more` other parts have
  /// ended. In the order of a stream, sends that NCCL buffers end when they are copied.
  struct Messages {
    std::shared_ptr<JointEnd> end;
    vdev::Task task;
  };
  Messages make_messages(MessageLane& lane, const char* name, std::vector<MessageCall> calls, int more,
                         Milliseconds timeout, std::shared_ptr<Outcome> outcome,
                         const std::shared_ptr<vdev::Stream>& stream);
  /// Begins `messages`, in the order of `stream` if it is not null.
  void begin_messages(MessageLane& lane, const char* name, Messages messages,
                      std::span<const Request> requests, const std::shared_ptr<vdev::Stream>& stream);
  /// Returns whether a message that this thread now begins goes over the group's communicator with NCCL, and
  /// not over one of the two ranks.
  bool goes_over_group(c10::Device device) const;
  /// Returns what a message and its receive must have in common: the program's tag, unless the group is
  /// strict. Raises ValueError for a negative tag, which `name` has been given.
  int matched_tag(const at::Tensor& tensor, int tag, const char* name) const;
  /// Returns the stream that has the message's order with NCCL. Returns null if the group is not strict.
  std::shared_ptr<vdev::Stream> stream_of_message(MessageLane& lane, const Request& request);
  /// Returns the card that ProcessGroupNCCL takes for a barrier: the one that is named, or that the group is
  /// bound to, or the first that the group has used, or one by the rank's number.
  int card_of_barrier(const c10d::BarrierOptions& options) const;
  std::shared_ptr<const WorkVccl::Group> group_for_profiler() const;
  /// Returns the owner of failures of operations on `device`, or null for the CPU, where only the handle
  /// raises errors.
  std::shared_ptr<vdev::FailureOwner> failures_on(c10::Device device) const {
    return device.is_cpu() ? nullptr : failures_;
  }
  struct BegunOperation {
    std::uint64_t sequence;
    std::shared_ptr<Outcome> outcome;
    std::uint64_t record;  // the profiler's number for the record of the operation, or 0
    RecordedOperation recorded;
  };
  /// Begins an operation; every operation of the group calls this, on the calling thread and in the order of
  /// the calls. Takes the operation's number from `count`, shows its calls to the profiler, and makes its
  /// outcome, which the completion hook watches and the flight recorder notes. `requests` are the calls of a
  /// batch, or one call.
  BegunOperation begin_operation(c10d::OpType type, std::span<const Request> requests,
                                 std::atomic<std::uint64_t>& count, bool batch = false);
  void begin_recording();
  /// Returns which entry gets hashes of the elements of call number `call` of an operation.
  HashedEntry hashed_entry(const RecordedOperation& operation, std::uint64_t call) const;
  void record_process();
  /// Returns the profiler's number for the record, or 0.
  std::uint64_t record_for_profiler(const Request& request, std::uint64_t sequence) const;
  /// Returns the description of the group in the label of an operation.
  LabelledGroup labelled(std::uint64_t sequence) const { return {pg_uid_, pg_desc_, rank_, size_, sequence}; }
  /// Raises ValueError for another card than the group is bound to, if the group is bound to a card.
  void check_bound_card(const Request& request) const;
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;
  WorkVccl::WaitRules wait_rules(c10::Device device, std::chrono::milliseconds timeout) const;
  static std::vector<Relative> communicators_of(
      const std::vector<c10::intrusive_ptr<ProcessGroupVccl>>& groups);
  void leave(std::chrono::milliseconds patience) noexcept;
  void close(std::chrono::milliseconds patience) noexcept;

  /// Returns this group, as `relatives` of a group that is made from it.
  std::vector<c10::intrusive_ptr<ProcessGroupVccl>> itself();
  c10::intrusive_ptr<Options> options_of_child(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  std::vector<std::uint64_t> global_ranks(const std::vector<int>& ranks) const;
  c10::intrusive_ptr<c10d::Store> store_of_child(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::string& purpose);
  /// Calls the hook, if there is one, once `outcome` is finished. Call this before the operation can end.
  void watch_completion(const std::shared_ptr<Outcome>& outcome, c10d::OpType type, std::uint64_t sequence);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const std::string name_;
  const NcclRules nccl_;
  c10::intrusive_ptr<c10d::Backend> kept_;
  // The failures on cards. Tasks keep this object, because they may outlive the group.
  const std::shared_ptr<vdev::FailureOwner> failures_ = std::make_shared<vdev::FailureOwner>();
  std::unique_ptr<DumpRequests> dump_requests_;
  std::shared_ptr<Recording> recording_;  // made in the constructor, while the ranks meet
  HeldRecords held_records_;              // of the default group
  // Outcomes keep these, too.
  const std::shared_ptr<SuccessHooks> success_hooks_ = std::make_shared<SuccessHooks>();
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();
  const std::shared_ptr<ExtraTime> extra_time_ = std::make_shared<ExtraTime>();
  std::shared_ptr<GroupOrder> order_;  // null unless VCCL_CHECK asks for it
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<bool> timing_{false};
  std::atomic<bool> checks_nan_{false};
  std::atomic<bool> connected_at_once_{false};      // whether the card's communicator was made with the group
  std::atomic<std::uint64_t> message_sequence_{0};  // the ranks' numbers need not agree
  Coalescing coalescing_;
  mutable std::mutex children_mutex_;    // guards the next three members
  std::map<std::string, int> children_;  // the number of children made for each purpose
  int splits_ = 0;
  std::string last_split_;  // the name of the last split
  std::unique_ptr<CompletionHook> hook_;
  std::atomic<CompletionHook*> watching_{nullptr};  // hook_, once it is there; the release store pairs with
                                                    // the acquire loads of its readers
  Communicators communicators_;
  PairMeetings pair_meetings_{communicators_.names(), rank_};
};

}  // namespace vccl
