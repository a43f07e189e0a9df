// In-order queues of host functions, each with a worker of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc_device/runtime/event.hpp"

namespace vdev {

class Queue;  // what Events, the worker and helpers hold: it outlives the Stream (queue.hpp)

/// What a stream runs. An exception that leaves it becomes the stream's error.
using Task = std::function<void()>;

/// Who is to start a task. Waking a sleeping worker costs the enqueuer about 5 us (a system call and an
/// interrupt to another core), which a caller that soon waits anyway saves by running the task itself.
enum class Start : std::uint8_t {
  kAtOnce,    // the worker is woken
  kByWaiter,  // whoever waits (synchronize, drain, Event::wait) or polls; the worker, if nobody has done so
              // within a few milliseconds
};

/// An in-order queue. Its worker thread starts with the first task that finds nobody to run it and sleeps
/// while the queue is empty. A host thread that waits for the stream runs queued tasks itself when the worker
/// is not at one ("helping"), which saves two thread switches; tasks therefore run one at a time, in order,
/// but on any thread.
///
/// Errors. A task that throws sets the stream's error; later tasks are skipped (their points are reached and
/// carry the error; a waiting stream inherits it) until a synchronisation raises it, once, and clears
/// it. An error that another stream already raised is cleared silently.
///
/// All members are thread-safe.
class Stream {
 public:
  /// `card` is informative (-1: belongs to no card). No thread is started.
  Stream(int card, std::int64_t id, int priority, std::string name);
  /// Runs what is queued, then joins the worker. Call abandon() first to drop the queue instead. Inside a
  /// task of the stream itself it leaves both to the worker.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int card() const { return card_; }
  std::int64_t id() const { return id_; }
  int priority() const { return priority_; }
  const std::string& name() const;

  /// Appends a task. Never blocks. With VDEV_LAUNCH_BLOCKING=1 it synchronises before it returns (and
  /// raises).
  void enqueue(Task task, Start start = Start::kAtOnce);
  /// Marks the present end of the queue. On an idle stream the point is reached at once, with no thread.
  Event record();
  /// Makes everything enqueued from now on wait for `event`. Free when it is already reached without error.
  void wait(const Event& event);

  /// True when nothing is queued or running.
  bool idle() const;
  /// Waits (helping) until everything enqueued before the call has run, then raises the stream's error, if
  /// any. Throws Error inside a task of the stream itself.
  void synchronize();
  /// As synchronize() but raises nothing: for destructors and for tasks of other streams. Inside a task of
  /// the stream itself it returns at once: everything before the task has run.
  void drain();

  /// Drops what is queued. A running task goes on; the points are reached once it has returned, carrying
  /// `error`, which also becomes the stream's error if a task was dropped (not when null). The stream remains
  /// usable.
  void abandon(std::exception_ptr error);

  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  const int card_;
  const std::int64_t id_;
  const int priority_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace vdev
