// In-order queues of host functions, which worker threads and threads that wait for a queue run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/task.hpp"

namespace vdev {

class Queue;  // the shared state of a stream; Events, the worker and helpers keep it, so that it outlives the
              // Stream (queue.hpp)

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
/// is not running a task ("helping"), which saves two thread switches. Tasks therefore run one at a time and
/// in order, but on any thread.
///
/// Failures: a task that throws, or that calls report_failure() (failure.hpp), has failed. What it should
/// have written is spoiled (spoiled_memory.hpp), and the tasks behind it run, except those that read spoiled
/// memory and those of which nobody knows what they read (task.hpp). Every synchronisation with the stream
/// raises the failure for as long as it stands. Streams and events behind the task do the same.
///
/// Priorities: before a task of a stream of priority 0 begins, the streams of the same card that have
/// priority -1 begin what they can (queues/stream_order.hpp).
///
/// While a stream is captured (capture.hpp), enqueue(), record() and wait() record, and idle(), drain() and
/// the synchronisations throw CardError.
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
  /// its failure.
  void enqueue(Task task, Start start = Start::kAtOnce, Waits waits = Waits::kPerhaps);
  /// Returns the present end of the queue as an event. On an idle stream the event is reached at once, and no
  /// thread starts.
  Event record();
  /// Makes everything enqueued from now on wait for `event`. Does nothing if `event` is already reached
  /// without a failure.
  void wait(const Event& event);

  /// Returns true when nothing is queued or running.
  bool idle() const;
  /// Returns idle(), but raises the first failure that stands.
  bool query() const;
  /// Blocks, helping, until everything enqueued before the call has run. Then raises the first failure that
  /// stands. Throws CardError inside a task of the stream itself. Like every wait
  /// here, it raises the interruption of the calling thread (interruption.hpp); the stream goes on.
  void synchronize();
  /// Blocks as synchronize() does, but raises only failures that the caller cannot find out about otherwise:
  /// failures of unknown memory, failures that were dealt with while the caller waited, and, once, failures
  /// that nobody has raised yet. Call this when the caller then asks spoiled_memory() about the memory that
  /// it reads.
  void synchronize_before_reading();
  /// Blocks as synchronize() does, but raises no failures; tasks of other streams
  /// may call it. Inside a task of the stream itself it returns at once, because everything before the task
  /// has run. A caller that goes on to use memory that the tasks have written has to call
  /// raise_before_reading().
  void drain();

  /// Gives up the tasks that are queued, because of `error`, which becomes a failure of the stream if there
  /// are any. A running task goes on, and the points are reached once it has returned. The stream remains
  /// usable.
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
