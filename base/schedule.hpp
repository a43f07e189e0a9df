// Orders on demand: which of the threads that could go on goes on next is drawn from a seed.
//
// While a schedule is on, one thread of the process holds the turn and runs; the others wait for it. A thread
// hands the turn on at the places that are marked here: at a point, when it sleeps on a channel, and when it
// waits for something that the schedule does not know (Outside). docs/inside/schedules.md explains the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace base::schedule {

/// How the next thread is chosen.
enum class Kind : std::uint8_t {
  random,  // any of those that can go on, with equal probability
  pct,     // the one of the highest priority; the priorities are drawn, and change at `depth` - 1 steps
};

/// What VDEV_SCHEDULE says: `random:SEED` or `pct:DEPTH:SEED`, and perhaps `,exact` behind it.
struct Plan {
  Kind kind = Kind::random;
  int depth = 1;
  std::uint64_t seed = 0;
  bool exact = false;  // waits at each step until threads outside of the schedule sleep
  /// The path of memory that the processes of a run share, so that one turn goes round among all their
  /// threads; empty if each process has a turn of its own.
  std::string turns;
  int process = 0;    // the number of this process among those of the run
  int processes = 1;  // how many there are
};

inline constexpr int kMostDepth = 16;
/// What a value of VDEV_SCHEDULE may be, for errors.
inline constexpr const char* kAllowed =
    "random:SEED or pct:DEPTH:SEED, with a seed from 0 to 18446744073709551615 and a depth from 1 to 16, "
    "and perhaps ',exact' behind it";
/// Returns the plan that a text asks for, or nothing if the text is not valid.
std::optional<Plan> parse(std::string_view text);

/// Starts a schedule, or another one in the place of the one that is on. Threads that the old one holds back
/// go on. The calling thread has the turn at the end, and takes part as the first one. Throws
/// std::system_error if the memory behind `turns` cannot be mapped.
void start(const Plan& plan);
/// Ends the schedule that is on. All threads go on.
void stop() noexcept;

/// What has come of a schedule: of the one that is on, or else of the last one.
struct Report {
  std::uint64_t steps = 0;  // choices between threads that could go on
  std::uint64_t trace = 0;  // a hash of all choices: equal orders have equal traces
  /// How often the turn was taken from a thread that slept where the schedule does not know it, that has
  /// ended, or that did not come. The order of a run without such a thread is the same each time.
  std::uint64_t taken = 0;
};
Report report() noexcept;

/// Tells how a thread lets other threads of a language's interpreter run while it waits for the turn.
/// `release` returns null if the thread does not hold the interpreter's lock.
void set_interpreter_lock(void* (*release)(), void (*take)(void* state), bool (*held)()) noexcept;

/// A place at which a thread may have to let others go first.
enum class Point : std::uint8_t {
  push,       // something was put on a queue. Passed over by a thread that holds the interpreter's lock.
  task,       // a task is about to be taken, or an event signalled
  poll,       // the thread asks whether something has happened, and may go on asking
  message,    // a message is about to be posted or matched
  operation,  // an operation with other ranks is about to begin
  meeting,    // ranks are about to meet
};

namespace detail {
/// Relaxed: a thread that sees a change late goes on as if it had come to the place a moment earlier.
inline constinit std::atomic<bool> on{false};
void pass(Point point) noexcept;
void wake(const void* channel) noexcept;
void wake_one(const void* channel) noexcept;
void leave() noexcept;
void come_back() noexcept;
}  // namespace detail

/// Returns whether a schedule is on.
inline bool is_on() noexcept {
  return detail::on.load(std::memory_order_relaxed);
}

/// Returns whether the calling thread takes part in the schedule that is on.
bool takes_part() noexcept;

/// Lets another thread go first if the schedule says so. The caller holds no lock that such a thread could
/// need.
inline void point(Point where) noexcept {
  if (is_on()) [[unlikely]]
    detail::pass(where);
}

/// What a sleeping thread asks from time to time: whether it has to go on although nobody has woken it. It
/// asks without the turn and without the lock, so how often it does is no part of the order.
struct Look {
  std::chrono::nanoseconds period;
  bool (*must_go_on)();
};

/// Sleeps until wake(channel) or `end`, and releases the lock meanwhile, as a condition variable does. May
/// return early. The caller has seen is_on(), and changes what it waits for under the lock. Returns
/// `timeout` at `end`, and if the look has said that the thread has to go on.
std::cv_status sleep(const void* channel, std::unique_lock<std::mutex>& lock,
                     std::chrono::steady_clock::time_point end, std::optional<Look> look = {}) noexcept;

/// Lets all threads go on that sleep on the channel. The caller has changed what they wait for before.
inline void wake(const void* channel) noexcept {
  if (is_on()) [[unlikely]]
    detail::wake(channel);
}

/// Does the same for a channel on which one thread sleeps for certain, perhaps since before the schedule
/// began. The schedule counts on that thread from now on, and it calls come() when it is awake.
inline void wake_one(const void* channel) noexcept {
  if (is_on()) [[unlikely]]
    detail::wake_one(channel);
}
void come(const void* channel) noexcept;

/// Is alive while the calling thread waits for something that the schedule does not know: another process, a
/// socket, the end of a thread. The thread has no turn meanwhile. The caller holds no lock at the end.
class Outside {
 public:
  Outside() noexcept : left_(is_on()) {
    if (left_) [[unlikely]]
      detail::leave();
  }
  ~Outside() {
    if (left_) [[unlikely]]
      detail::come_back();
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  const bool left_;
};

/// Announces a thread that the calling thread is about to start, so that the schedule counts on it before it
/// runs. The object goes into the thread, which calls begin() first. If the thread cannot be started, the
/// announcement is forgotten when the schedule has waited for it.
class NewThread {
 public:
  NewThread() noexcept;
  void begin() const noexcept;

 private:
  int slot_ = -1;
  std::uint64_t generation_ = 0;
};

/// Call this as the last thing of a thread that began with NewThread: from here on it passes no point, and
/// the turn goes on.
void end_thread() noexcept;

/// Marks, as long as it lives, that the calling thread holds a lock that other threads of the schedule may
/// need. The thread passes over points meanwhile.
class NoPoints {
 public:
  NoPoints() noexcept;
  ~NoPoints();
  NoPoints(const NoPoints&) = delete;
  NoPoints& operator=(const NoPoints&) = delete;
};

}  // namespace base::schedule
