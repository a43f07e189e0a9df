// In-order queues of host functions. Each has its own worker thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc_device/runtime/event.hpp"

namespace vdev {

class Queue;  // the shared state of a stream; Events, the worker and helpers keep it, so that it outlives the
              // Stream (queue.hpp)

/// A task is what a stream runs. An exception that leaves a task becomes the stream's error.
using Task = std::function<void()>;

/// Names the thread that is to run a task. Waking a sleeping worker costs the enqueuer about 5 us (a system
/// call and an interrupt to another core). A caller that soon waits anyway saves this by running the task
/// itself.
enum class Start : std::uint8_t {
  kAtOnce,    // the worker runs the task, and is woken
  kSoon,      // the task is deferred as with kByWaiter, but the worker is woken when tasks pile up
  kByWaiter,  // the task is deferred: a thread that waits (synchronize, drain, Event::wait) runs it, or the
              // worker does if a thread polls or after a few milliseconds
};

/// Says whether a task may wait for other tasks, threads or processes, as collectives and host functions do.
/// A task that never waits may be run by a thread that has something else to do (StreamOrder).
enum class Waits : std::uint8_t { kPerhaps, kNever };

/// Runs tasks in order. The worker thread starts with the first task that no other thread runs, and sleeps
/// while the queue is empty. A host thread that waits for the stream runs queued tasks itself if the worker
/// is not running one ("helping"), which saves two thread switches. Tasks therefore run one at a time and in
/// order, but on any thread.
///
/// Errors: a task that throws sets the stream's error. Later tasks are skipped; their points are reached and
/// carry the error, and a stream that waits for such a point inherits the error. A synchronisation raises the
/// error, once, and clears it. If another stream has already raised the error, it is cleared without being
/// raised.
///
/// Failures: a task that calls report_failure() (failure.hpp) fails without an error, and later tasks run.
/// synchronize() raises the failure every time until it is dealt with. Streams and events behind the task do
/// the same.
///
/// Priorities: before a task of a stream of priority 0 begins, the streams of the same card that have
/// priority -1 begin what they can (streams/stream_order.hpp).
///
/// While a stream is captured (capture.hpp), enqueue(), record() and wait() record, and idle(), drain() and
/// the synchronisations throw Error.
class Stream {
 public:
  /// Makes a stream and starts no thread. `card` is for the caller's information; -1 means that the stream
  /// belongs to no card.
  Stream(int card, std::int64_t id, int priority, std::string name);
  /// Runs what is queued, then joins the worker. To drop the queue instead, call abandon() first. Inside a
  /// task of the stream itself, the destructor leaves both to the worker.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int card() const { return card_; }
  std::int64_t id() const { return id_; }
  int priority() const { return priority_; }
  const std::string& name() const;

  /// Appends a task. Never blocks, except with VDEV_LAUNCH_BLOCKING=1: then it waits for the task and raises
  /// its error.
  void enqueue(Task task, Start start = Start::kAtOnce, Waits waits = Waits::kPerhaps);
  /// Returns the present end of the queue as an event. On an idle stream the event is reached at once, and no
  /// thread starts.
  Event record();
  /// Makes everything enqueued from now on wait for `event`. Does nothing if `event` is already reached
  /// without an error or failure.
  void wait(const Event& event);

  /// Returns true when nothing is queued or running.
  bool idle() const;
  /// Blocks, helping, until everything enqueued before the call has run. Then raises the stream's error, if
  /// any, or the first failure that stands. Throws Error inside a task of the stream itself. Like every wait
  /// here, it raises the interruption of the calling thread (interruption.hpp); the stream goes on.
  void synchronize();
  /// Does what synchronize() does, but raises of the failures only one that was dealt with while the caller
  /// waited. Call this when the caller then asks spoiled_memory() about the memory that it reads.
  void synchronize_before_reading();
  /// Does what synchronize() does, but does not raise the stream's error or failures; tasks of other streams
  /// may call it. Inside a task of the stream itself it returns at once, because everything before the task
  /// has run.
  void drain();

  /// Drops what is queued. A running task goes on, and the points are reached once it has returned. The
  /// points carry `error`. If a task was dropped and `error` is not null, `error` also becomes the stream's
  /// error. The stream remains usable.
  void abandon(std::exception_ptr error);

  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  void wait_for_all();

  const int card_;
  const std::int64_t id_;
  const int priority_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace vdev
