// What the cards do, recorded for a profiler: which task ran when on which stream, and which call launched
// it.
//
// Nothing is recorded, and next to nothing is spent, until start_recording(). While a recording is under way,
// a queue notes with each task the call that enqueues it (Launch), and records when the task ran.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vdev {

enum class ActivityKind : std::uint8_t { kTask, kOperator, kCopy, kCollective, kGraph };

/// Describes a collective, for its activity.
struct Communication {
  std::string collective;  // "all_reduce"
  std::string group;       // as torch names it
  std::string description;
  int rank = 0, size = 1;  // this rank's number in the group, and the group's size
  std::uint64_t sequence = 0;
  std::string dtype;
  std::size_t elements_in = 0, elements_out = 0;
  double bus_factor = 1;  // the quotient of bus bandwidth and algorithm bandwidth
};

/// Says what a task does.
struct ActivityLabel {
  ActivityKind kind = ActivityKind::kTask;
  std::string name = {};  // empty for the name of the operator that launches the task
  std::size_t bytes = 0;  // the bytes that a copy or a collective moves
  std::shared_ptr<const Communication> communication = nullptr;
  std::uint64_t correlation = 0;  // 0 for the innermost that the calling thread has open
};

/// Names the stream on which activity happens. Each queue has one.
struct Lane {
  static constexpr std::int64_t kNoStream = -1;  // for activity beside the streams
  int card = -1;                                 // -1 for a stream of no card
  std::int64_t stream = 0;
  std::string name;
};

/// A range that the program has opened on a thread, such as a step of the profiler.
struct ActivityRange {
  std::uint64_t id;
  std::shared_ptr<const ActivityRange> outer;
};

/// Holds a call that has launched a task. Times are those of base::monotonic_ns().
struct Launch {
  ActivityLabel label;
  std::shared_ptr<const Lane> lane;
  std::int64_t begin = 0, end = 0;
  std::int32_t thread = 0;  // the system's number
  std::shared_ptr<const ActivityRange> range;
  // The correlations around the label's, from the inside, if the label's is the innermost. They end before
  // the first inside of which no other correlation was opened before.
  std::array<std::uint64_t, 3> outer_correlations{};
  std::uint64_t recording = 0;  // the number of the recording that it belongs to
  bool is_part = false;         // made by ActivityRun::part()
};

/// Holds a task that has run, from `begin` to `end`.
struct Activity {
  std::unique_ptr<const Launch> launch;
  std::int64_t begin = 0, end = 0;
};

/// The number of the recording that is under way, or 0. Loads and stores are relaxed: a thread that sees a
/// change late begins or ends to record late, and what is recorded is handed over under a lock.
inline std::atomic<std::uint64_t> recording_under_way{0};

/// Returns whether activity is recorded.
inline bool is_recording() noexcept {
  return recording_under_way.load(std::memory_order_relaxed) != 0;
}

/// The number of users of labels: the recording, and each capture of streams, because a graph may be
/// replayed while activity is recorded. Relaxed, as `recording_under_way` is.
inline std::atomic<int> labels_wanted{0};

/// Labels, for as long as it lives, the tasks that the calling thread enqueues or runs. The innermost label
/// counts. `make` returns the ActivityLabel, and is called only while somebody wants labels.
class ActivityScope {
 public:
  template <class Make>
  explicit ActivityScope(const Make& make) {
    if (labels_wanted.load(std::memory_order_relaxed) != 0) [[unlikely]] {
      open(make());
    }
  }
  ~ActivityScope() {
    if (label_) [[unlikely]] {
      close();
    }
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  void open(ActivityLabel label);
  void close() noexcept;
  friend std::unique_ptr<Launch> make_launch(const std::shared_ptr<const Lane>& lane);
  friend ActivityLabel current_label();

  std::optional<ActivityLabel> label_;
  std::int64_t begin_ = 0;
  const ActivityScope* outer_ = nullptr;
};

/// Returns the innermost label of the calling thread, or an empty one.
ActivityLabel current_label();

/// Returns the call by which the thread launches now on `lane`, under the innermost label. Call this only
/// while activity is recorded.
std::unique_ptr<Launch> make_launch(const std::shared_ptr<const Lane>& lane);

/// Records, from its construction to its end, a task that the calling thread runs. What the task launches
/// has no label from outside of the task.
class ActivityRun {
 public:
  /// Records nothing if `launch` is null.
  explicit ActivityRun(std::unique_ptr<Launch> launch) noexcept;
  /// Records work that the calling thread runs by itself, in the place of a task of its current stream on
  /// `card`. Records nothing inside of another run.
  explicit ActivityRun(int card);
  /// Records a part of the run that the calling thread is in.
  template <class Make>
  static ActivityRun part(const Make& make) {
    return is_recording() ? ActivityRun(part_of_run(make())) : ActivityRun(nullptr);
  }
  ~ActivityRun();
  ActivityRun(const ActivityRun&) = delete;
  ActivityRun& operator=(const ActivityRun&) = delete;

 private:
  static std::unique_ptr<Launch> part_of_run(ActivityLabel label);
  void enter() noexcept;

  std::unique_ptr<Launch> launch_;
  std::int64_t begin_ = 0;
  const ActivityScope* scope_ = nullptr;  // the scope that is restored at the end
  const ActivityRun* outer_ = nullptr;
};

/// Records work that has run without an ActivityRun.
void record_run(Activity activity) noexcept;

// --- for the profiler ---

/// Holds a recording's activities. `lost` counts the activities that did not fit.
struct Recorded {
  std::vector<Activity> activities;
  std::size_t lost = 0;
};

/// Begins a recording of at most `most` activities, and returns its number. A recording that is under way is
/// given up.
std::uint64_t start_recording(std::size_t most);
/// Ends the recording and returns what it holds, in the order in which the tasks ended. Tasks that have not
/// ended are not in it. Returns nothing if that recording was given up.
Recorded stop_recording(std::uint64_t recording);

/// Opens and closes correlations of the calling thread: numbers by which the profiler knows the operator that
/// launches a task. close_correlation() does nothing if none is open.
void open_correlation(std::uint64_t id);
void close_correlation() noexcept;
/// Returns the innermost correlation of the calling thread, or 0.
std::uint64_t current_correlation() noexcept;
/// Opens and closes ranges of the calling thread. A thread without an open range, such as a thread of
/// autograd, is taken to work for the outermost range of the thread that has opened a range.
void open_range(std::uint64_t id);
void close_range() noexcept;

}  // namespace vdev
