// Calls that are collected and launched together.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_pg/message_task.hpp"
#include "csrc_pg/plan.hpp"
#include "csrc_pg/request.hpp"

namespace vccl {

class BatchEntry;

/// What one thread has called between the start and the end, in the order of its calls, on one device.
struct Batch {
  std::vector<Request> requests;  // of all
  std::vector<Plan> plans;        // of the collectives
  std::vector<MessageCall> messages;
  // What the calls have returned and somebody still holds: to be told of the batch's Work.
  std::vector<c10::weak_intrusive_ptr<BatchEntry>> entries;
};

/// The Work of a call in a batch: it cannot be waited for before the batch is launched, and is the batch's
/// then.
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

/// The batches that a group's threads are collecting, one a thread: as in NCCL, other threads' calls go on
/// their way meanwhile. Thread-safe.
class Coalescing {
 public:
  /// Begins the calling thread's batch anew.
  void start();
  /// Whether the calling thread is collecting.
  bool active() const;
  /// A call of the calling thread, which is collecting. Returns a Work if it is asynchronous. Raises
  /// ValueError when the device is not the batch's; the batch is as it was then.
  c10::intrusive_ptr<c10d::Work> add(Request request, Plan plan);
  c10::intrusive_ptr<c10d::Work> add(Request request, MessageCall message);
  /// Ends the calling thread's batch; none if there is none.
  std::optional<Batch> take();

 private:
  Batch& mine(const Request& request);
  static c10::intrusive_ptr<c10d::Work> entered(Batch& batch, Request request);

  mutable std::mutex mutex_;
  std::map<std::thread::id, Batch> batches_;
  std::atomic<int> count_{0};  // of batches; a thread sees its own in it
};

}  // namespace vccl
