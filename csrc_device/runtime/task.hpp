// The tasks that a stream runs, and what happens in place of a task that does not run.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>

#include "csrc_device/runtime/failure.hpp"

namespace vdev {

/// Is the body of a task. A stream calls run(). If run() throws, or the task is not to run at all, the stream
/// calls give_up(): because of a failure before it, or because the stream was abandoned. A task of a graph
/// may run several times.
class TaskBody {
 public:
  virtual ~TaskBody() = default;
  virtual void run() = 0;
  /// Spoils the memory that the task would have written, with `failure` as the reason (spoiled_memory.hpp),
  /// and tells whoever else waits for the task. The stream has the failure already.
  virtual void give_up(const FailurePtr& failure) = 0;
  /// Returns whether give_up() spoils everything that the task writes, and run() checks all memory that the
  /// task reads. Otherwise the task is given up behind every failure of its stream, and the tasks behind a
  /// task that was given up are given up, too: they may read what it should have written.
  virtual bool knows_its_memory() const noexcept { return true; }
};

/// A piece of work that a stream runs. A callable object alone makes a task of which nobody knows which
/// memory it reads and writes. Copies share the body.
class Task {
 public:
  Task() = default;
  Task(std::nullptr_t) {}
  Task(std::shared_ptr<TaskBody> body) : body_(std::move(body)) {}
  template <std::derived_from<TaskBody> Body>
  Task(std::shared_ptr<Body> body) : body_(std::move(body)) {}
  template <class Call>
    requires std::invocable<Call&>
  Task(Call call) : body_(std::make_shared<Unknown<Call>>(std::move(call))) {}

  explicit operator bool() const { return body_ != nullptr; }
  TaskBody& operator*() const { return *body_; }
  TaskBody* operator->() const { return body_.get(); }

 private:
  template <class Call>
  class Unknown final : public TaskBody {
   public:
    explicit Unknown(Call call) : call_(std::move(call)) {}
    void run() override { call_(); }
    void give_up(const FailurePtr&) override {}
    bool knows_its_memory() const noexcept override { return false; }

   private:
    Call call_;
  };

  std::shared_ptr<TaskBody> body_;
};

/// Returns a task that neither reads nor writes memory of the program, such as a delay. It runs behind
/// failures, too.
template <class Call>
Task task_without_memory(Call call) {
  class WithoutMemory final : public TaskBody {
   public:
    explicit WithoutMemory(Call c) : call_(std::move(c)) {}
    void run() override { call_(); }
    void give_up(const FailurePtr&) override {}

   private:
    Call call_;
  };
  return Task(std::make_shared<WithoutMemory>(std::move(call)));
}

/// Call this inside a task. Adds `failure` to the failures of the task's stream, which every later
/// synchronisation with the stream raises. Does nothing outside of a task.
void report_failure(FailurePtr failure);

/// Call this inside a task of which nobody knows which memory it reads. Returns a failure of the task's
/// stream that has not been dealt with, or that was dealt with only after the host had enqueued this task.
/// Returns null if there is none.
FailurePtr failure_before_this_task();

/// Runs a task, as a part of the task that the calling thread runs: a graph consists of such parts. Gives the
/// part up if a failure before it demands that, and reports what it throws as a failure of the stream.
/// Returns false if the part did not run to its end.
bool run_part(TaskBody& part);
/// Gives a part of the running task up, and reports the failure to the stream.
void give_up_part(TaskBody& part, const FailurePtr& failure);

}  // namespace vdev
