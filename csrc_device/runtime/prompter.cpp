#include "csrc_device/runtime/prompter.hpp"

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

#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/signals.hpp"

namespace vdev {
namespace {

// Nanoseconds. The longer one while every task finds its waiter; where one does not, the next few do not wait
// so long.
constexpr std::int64_t kLongest = 8'000'000, kShortest = 2'000'000;

/// A timer that is put off as long as waiters come. A thread that looked at regular times would take a core
/// from whoever computes there: with 16 processes on 2 cores, ticks of 4 ms took a fifth of their speed.
class Prompter {
 public:
  void expect(std::int64_t now);
  void forget() { waiting_.fetch_sub(1); }
  void stop();

  const int generation = fork_generation();

 private:
  using Lock = std::lock_guard<std::mutex>;

  void set(std::int64_t now);
  void set_timer(std::int64_t nanoseconds);
  bool start();
  void run();
  bool goes_off();

  // How many queues have such a task; and when the timer goes off, in monotonic nanoseconds, or 0. A queue
  // adds itself and then looks at due_, the thread clears due_ and then looks at waiting_, both in the one
  // order of all such operations: so either it finds the queue, or the queue sets the timer.
  std::atomic<int> waiting_{0};
  std::atomic<std::int64_t> due_{0};
  std::atomic<std::int64_t> patience_{kLongest};

  // Held where the timer is set and due_ written, so that they agree.
  std::mutex mutex_;
  int timer_ = -1;
  bool stopped_ = false;
  std::thread thread_;
};

void Prompter::expect(std::int64_t now) {
  const bool is_first = waiting_.fetch_add(1) == 0;
  const std::int64_t due = due_.load();
  // Seldom, as it is a system call. Not for the first one alone, as tasks that overlap would put it off for
  // ever.
  const bool is_set = is_first ? due - now > patience_.load() / 2 : due != 0;
  if (is_set) return;
  Lock lock(mutex_);
  set(now);
}

/// Lock held.
void Prompter::set(std::int64_t now) {
  if (stopped_) return;
  const std::int64_t patience = patience_.load();
  // Also where there is no thread to be had, and then tried again.
  due_.store(now + patience);
  if (thread_.joinable() || start()) set_timer(patience);
}

/// Lock held. To go off once, in less than a second.
void Prompter::set_timer(std::int64_t nanoseconds) {
  const itimerspec once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = nanoseconds}};
  timerfd_settime(timer_, 0, &once, nullptr);
}

/// Lock held.
bool Prompter::start() {
  if (timer_ < 0) timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer_ < 0) return false;
  SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return false;
  }
  pthread_setname_np(thread_.native_handle(), "vdev prompter");
  return true;
}

void Prompter::run() {
  while (goes_off()) {
    const std::int64_t patience = patience_.load();
    const bool left_alone = waiting_.load() > 0 && prompt_all_queues(patience / 2);
    patience_.store(left_alone ? kShortest : std::min(2 * patience, kLongest));
    Lock lock(mutex_);
    if (waiting_.load() > 0 && due_.load() == 0) set(monotonic_ns());
  }
}

/// Waits for that. False when the thread is to end: also if somebody has closed all descriptors.
bool Prompter::goes_off() {
  std::uint64_t times = 0;
  while (read(timer_, &times, sizeof times) < 0)
    if (errno != EINTR) return false;
  Lock lock(mutex_);
  due_.store(0);
  return !stopped_;
}

void Prompter::stop() {
  {
    Lock lock(mutex_);
    stopped_ = true;
    if (timer_ >= 0) set_timer(1);
  }
  if (thread_.joinable()) thread_.join();
}

// Leaked, and made anew after a fork: the thread did not survive it, and the lock may be held for ever.
Prompter& prompter() {
  static std::atomic<Prompter*> current{new Prompter};
  Prompter* found = current.load(std::memory_order_acquire);
  while (found->generation != fork_generation()) {
    auto* fresh = new Prompter;
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

}  // namespace

void expect_waiter(std::int64_t now) noexcept {
  prompter().expect(now);
}

void waiter_came() noexcept {
  prompter().forget();
}

void stop_prompter() noexcept {
  prompter().stop();
}

}  // namespace vdev
