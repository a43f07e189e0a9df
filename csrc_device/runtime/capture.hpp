// The recording of the tasks that streams are given, instead of running them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class Graph;
class Queue;
struct Completion;

/// Says which calls of ordinary events, which are harmless on a card but may disturb a capture on a GPU, are
/// refused while a capture is under way.
enum class CaptureMode : std::uint8_t {
  kGlobal,       // the calls of any thread
  kThreadLocal,  // the calls of the thread that began the capture
  kRelaxed,      // no calls
};

/// Keeps a private pool of an allocator reserved.
class PoolUse {
 public:
  PoolUse(CachingAllocator& allocator, PoolNumber pool) : allocator_(allocator), pool_(pool) {
    allocator_.retain_pool(pool_);
  }
  ~PoolUse() { allocator_.release_pool(pool_); }
  PoolUse(const PoolUse&) = delete;
  PoolUse& operator=(const PoolUse&) = delete;

  CachingAllocator& allocator() const { return allocator_; }
  PoolNumber pool() const { return pool_; }

 private:
  CachingAllocator& allocator_;
  const PoolNumber pool_;
};

/// An object that a ReplayUser needs while one replay is enqueued, such as a lock.
class ReplayTurn {
 public:
  virtual ~ReplayTurn() = default;
  /// Call this when the replay is enqueued, with its end.
  virtual void enqueued(const Event& end) noexcept = 0;
};

/// Takes part in every replay of a graph. A communicator does: its collectives have one order, whether or not
/// they are replayed.
class ReplayUser {
 public:
  virtual ~ReplayUser() = default;
  /// Call this before a replay is enqueued on `stream`. May return null.
  virtual std::unique_ptr<ReplayTurn> begin(Stream& stream) = 0;
};

/// Says where in a capture an event was recorded.
struct CapturedPoint {
  std::shared_ptr<class Capture> capture;
  std::vector<std::uint32_t> after;  // the tasks that the point comes directly after
};

/// One task of a graph, and the tasks that it comes directly after.
struct CapturedTask {
  Task task;
  std::vector<std::uint32_t> after;
  std::string stream;
  ActivityLabel label;  // for the profiler of a replay
};

/// Records the tasks that the captured streams are given. A stream that waits for an event of the capture
/// joins it. The streams must be joined back: their last tasks must come before the end of the stream that
/// the capture began on. A call that is refused invalidates the capture, as on CUDA. Thread-safe.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  /// Begins to capture `stream`. Throws CardError if the stream is captured already. Tasks that were queued
  /// there stay queued, and run. Memory that the captured streams allocate comes from the private pool
  /// `pool`. The `attachment` is the caller's own object.
  static std::shared_ptr<Capture> begin(const std::shared_ptr<Stream>& stream, CaptureMode mode,
                                        PoolNumber pool, std::shared_ptr<void> attachment = nullptr);
  Capture(CaptureMode mode, PoolNumber pool, std::shared_ptr<void> attachment)
      : mode_(mode), pool_(pool), attachment_(std::move(attachment)) {}

  /// Ends the capture; the streams are ordinary streams again. Throws CardError if the capture was
  /// invalidated, or if a stream was not joined back.
  std::shared_ptr<Graph> end();

  /// Makes end() throw, with the first reason.
  void invalidate(const std::string& reason);
  /// Adds a user, unless it is there already.
  void add_user(const std::shared_ptr<ReplayUser>& user);
  /// Returns the number of the pool, and keeps it reserved in `allocator`.
  PoolNumber pool_in(CachingAllocator& allocator);
  void* attachment() const { return attachment_.get(); }

  // Queue calls these. Each but join() returns false, or null, if the capture no longer captures the queue.
  bool add(const Queue& queue, Task& task);
  std::shared_ptr<const CapturedPoint> record(const Queue& queue);
  bool wait(const Queue& queue, const CapturedPoint& point);
  /// Records that `queue` waits for `point`, in the capture of the point or of the queue. Returns false if
  /// the queue is not captured any more, and the point is an ordinary one. Throws CardError if the two do not
  /// belong together, and invalidates the captures.
  static bool wait_for(const Completion& point, const std::shared_ptr<Queue>& queue);
  /// Throws CardError if the capture has ended.
  void join(const std::shared_ptr<Queue>& queue, const CapturedPoint& point);

  bool concerns_this_thread() const;

 private:
  struct Captured {
    std::shared_ptr<Queue> queue;
    std::vector<std::uint32_t> last;  // the tasks that the queue's next task comes directly after
  };
  std::string unjoined() const;
  void leave_all();

  const CaptureMode mode_;
  const PoolNumber pool_;
  const std::shared_ptr<void> attachment_;
  const std::thread::id thread_ = std::this_thread::get_id();

  // Taken before the mutex of an allocator or a queue.
  std::mutex mutex_;
  bool ended_ = false;
  std::string invalid_;
  const Queue* origin_ = nullptr;
  std::map<const Queue*, Captured> queues_;
  std::vector<CapturedTask> tasks_;
  std::vector<std::shared_ptr<ReplayUser>> users_;
  std::vector<std::unique_ptr<PoolUse>> pools_;
};

/// Returns a number for a private pool, which nobody else in the process has.
PoolNumber new_private_pool() noexcept;

/// Throws CardError, and invalidates the capture, if `stream` is captured. `what` names the refused call.
void refuse_captured(const Stream& stream, const char* what);
/// Throws CardError, and invalidates the capture, if a capture is under way whose mode forbids `what`.
void refuse_during_capture(const char* what);

}  // namespace vdev
