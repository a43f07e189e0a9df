#include "csrc_device/runtime/queues/deferred_task_timer.hpp"

#include <pthread.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/signals.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"

namespace vdev {
namespace {

// In nanoseconds. The timer waits for the longer time while every deferred task finds its waiter. After one
// has not, the next few tasks wait for the shorter time.
constexpr std::int64_t kLongest = 8'000'000, kShortest = 2'000'000;

/// Runs deferred tasks that no waiter takes, by a timer that is put off as long as waiters come. A thread
/// that looked at regular times would take a core from the threads that compute: with 16 processes on 2
/// cores, ticks of 4 ms took a fifth of their speed.
class DeferredTaskTimer {
 public:
  void expect(std::int64_t now);
  void forget() { waiting_.fetch_sub(1); }
  void stop();

 private:
  using Lock = std::lock_guard<std::mutex>;

  void set(std::int64_t now);
  void set_timer(std::int64_t nanoseconds);
  bool start();
  void run();
  bool goes_off();

  // waiting_ counts the queues that have a deferred task. due_ is the time at which the timer goes off, in
  // monotonic nanoseconds, or 0. A queue adds itself to waiting_ and then loads due_. The thread clears due_
  // and then loads waiting_. All four operations are sequentially consistent and so have one order. Hence
  // either the thread finds the queue, or the queue finds due_ cleared and sets the timer.
  std::atomic<int> waiting_{0};
  std::atomic<std::int64_t> due_{0};
  std::atomic<std::int64_t> patience_{kLongest};

  // Held while the timer is set and due_ is written, so that the two agree.
  std::mutex mutex_;
  int timer_ = -1;
  bool stopped_ = false;
  std::thread thread_;
};

void DeferredTaskTimer::expect(std::int64_t now) {
  const bool is_first = waiting_.fetch_add(1) == 0;
  const std::int64_t due = due_.load();
  // Setting the timer is a system call. A first deferred task therefore puts the timer off only if at most
  // half of its time is left. A further task sets the timer only if it is not set: tasks that overlap would
  // put it off for ever.
  const bool is_set = is_first ? due - now > patience_.load() / 2 : due != 0;
  if (is_set) return;
  Lock lock(mutex_);
  set(now);
}

/// The caller holds the lock.
void DeferredTaskTimer::set(std::int64_t now) {
  if (stopped_) return;
  const std::int64_t patience = patience_.load();
  // due_ is also set if no thread can be started, so that not every task tries again.
  due_.store(now + patience);
  if (thread_.joinable() || start()) set_timer(patience);
}

/// Sets the timer to go off once, in less than a second. The caller holds the lock.
void DeferredTaskTimer::set_timer(std::int64_t nanoseconds) {
  const itimerspec once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = nanoseconds}};
  timerfd_settime(timer_, 0, &once, nullptr);
}

/// The caller holds the lock.
bool DeferredTaskTimer::start() {
  if (timer_ < 0) timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer_ < 0) return false;
  base::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return false;
  }
  pthread_setname_np(thread_.native_handle(), "vdev timer");
  return true;
}

void DeferredTaskTimer::run() {
  while (goes_off()) {
    const std::int64_t patience = patience_.load();
    const bool left_alone = waiting_.load() > 0 && prompt_all_queues(patience / 2);
    patience_.store(left_alone ? kShortest : std::min(2 * patience, kLongest));
    Lock lock(mutex_);
    if (waiting_.load() > 0 && due_.load() == 0) set(base::monotonic_ns());
  }
}

/// Blocks until the timer goes off. Returns false when the thread is to end, also if the program has closed
/// all descriptors.
bool DeferredTaskTimer::goes_off() {
  std::uint64_t times = 0;
  while (read(timer_, &times, sizeof times) < 0)
    if (errno != EINTR) return false;
  Lock lock(mutex_);
  due_.store(0);
  return !stopped_;
}

void DeferredTaskTimer::stop() {
  {
    Lock lock(mutex_);
    stopped_ = true;
    if (timer_ >= 0) set_timer(1);
  }
  if (thread_.joinable()) thread_.join();
}

DeferredTaskTimer& deferred_task_timer() {
  static base::OnePerProcess<DeferredTaskTimer> one;
  return one.get();
}

}  // namespace

void expect_waiter(std::int64_t now) noexcept {
  deferred_task_timer().expect(now);
}

void waiter_came() noexcept {
  deferred_task_timer().forget();
}

void stop_deferred_task_timer() noexcept {
  deferred_task_timer().stop();
}

}  // namespace vdev
