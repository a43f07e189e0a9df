// Calls that are collected and then launched together.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_pg/operations/request.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"
#include "csrc_pg/tasks/message_task.hpp"

namespace vccl {

class BatchEntry;

/// Holds what one thread has called since startCoalescing(), in the order of the calls. All calls are on one
/// device.
struct Batch {
  std::vector<Request> requests;      // of all calls
  std::vector<CollectivePlan> plans;  // of the collectives
  std::vector<MessageCall> messages;
  // The Works that the calls have returned and the caller still holds. launched() gives each of them the
  // batch's Work.
  std::vector<c10::weak_intrusive_ptr<BatchEntry>> entries;
};

/// A BatchEntry is the Work of a call in a batch. Before the batch is launched, it cannot be waited for.
/// Afterwards it does what the batch's Work does.
class BatchEntry final : public c10d::Work {
 public:
  explicit BatchEntry(const char* name) : name_(name) {}

  void launched(const c10::intrusive_ptr<c10d::Work>& batch);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10d::Work> known() const;  // null before the launch
  c10d::Work& batch(c10::intrusive_ptr<c10d::Work>& holder) const;

  const char* const name_;
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Work> batch_;
};

/// Holds the batches that a group's threads are collecting, one for each thread. As in NCCL, calls of other
/// threads are launched as usual meanwhile. Thread-safe.
class Coalescing {
 public:
  /// Begins a new batch of the calling thread.
  void start();
  /// Returns whether the calling thread is collecting.
  bool active() const;
  /// Adds a call of the calling thread, which must be collecting. Returns a Work if the call is asynchronous.
  /// Raises ValueError, and leaves the batch as it was, if the call's device is not the batch's.
  c10::intrusive_ptr<c10d::Work> add(Request request, CollectivePlan plan);
  c10::intrusive_ptr<c10d::Work> add(Request request, MessageCall message);
  /// Ends the calling thread's batch and returns it. Returns nothing if the thread is not collecting.
  std::optional<Batch> take();

 private:
  Batch& mine(const Request& request);
  static c10::intrusive_ptr<c10d::Work> entered(Batch& batch, Request request);

  mutable std::mutex mutex_;
  std::map<std::thread::id, Batch> batches_;
  std::atomic<int> count_{0};  // number of batches; always counts the calling thread's own
};

}  // namespace vccl
