// Small programs of several threads, played under a schedule.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/schedule.hpp"

namespace schedule = base::schedule;

inline schedule::Plan plan_of(const std::string& text) {
  return schedule::parse(text).value();
}

/// Lets another thread go first, if the schedule says so.
inline void step() {
  schedule::point(schedule::Point::task);
}

/// Plays the bodies as threads under a schedule, to their ends. Returns what came of the schedule. On a
/// machine that is very busy a thread may lose its turn, which the report tells.
inline schedule::Report play(const schedule::Plan& plan, const std::vector<std::function<void()>>& bodies) {
  schedule::start(plan);
  step();  // from here on this thread has the turn, so that all others are there before one of them begins
  std::vector<std::thread> threads;
  for (const auto& body : bodies) {
    const schedule::NewThread announced;
    threads.emplace_back([announced, &body] {
      announced.begin();
      body();
      schedule::end_thread();
    });
  }
  {
    const schedule::Outside joining;
    for (auto& thread : threads) thread.join();
  }
  const auto report = schedule::report();
  schedule::stop();
  return report;
}

/// Plays something until no thread has lost its turn meanwhile, so that its order is that of the seed alone.
/// `play_once()` returns a pair of a result and a report; the result is returned.
template <class PlayOnce>
auto undisturbed(const PlayOnce& play_once) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    auto [result, report] = play_once();
    if (report.taken == 0) return result;
  }
  throw std::runtime_error("a thread has lost its turn each time");
}

/// The threads of a program that sleep. If all do that have not ended, the program is stuck.
class Stuck {
 public:
  explicit Stuck(int threads) : alive_(threads) {}

  void ended() { --alive_; }
  bool is_stuck() const { return stuck_; }
  /// Returns how many sleeps have timed out: so often time has decided about the order, and not the seed.
  std::uint64_t timeouts() const { return timeouts_; }

  /// Sleeps on a channel until wake(), or until the program is stuck. The caller holds the lock.
  void sleep(const void* channel, std::unique_lock<std::mutex>& lock) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    ++asleep_;
    const auto status = schedule::sleep(channel, lock, end);
    if (status == std::cv_status::timeout) ++timeouts_;
    // A thread that was woken has not counted itself out yet, so the count is looked at on a time-out only,
    // and then it holds: whoever was woken is ready, and comes before it is looked at again.
    if (status == std::cv_status::timeout && asleep_ == alive_) {
      if (++looks_ > 2 * alive_) stuck_ = true;
    } else {
      looks_ = 0;
    }
    --asleep_;
  }

 private:
  std::atomic<int> alive_;
  std::atomic<int> asleep_{0};
  std::atomic<int> looks_{0};
  std::atomic<std::uint64_t> timeouts_{0};
  std::atomic<bool> stuck_{false};
};

/// A lock on which threads of a schedule wait for each other.
class Lock {
 public:
  explicit Lock(Stuck& stuck) : stuck_(stuck) {}

  void take() {
    step();
    std::unique_lock lock(mutex_);
    while (taken_ && !stuck_.is_stuck()) stuck_.sleep(this, lock);
    taken_ = true;
  }
  void give_back() {
    give_back_without_step();
    step();
  }
  void give_back_without_step() {
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
    }
    schedule::wake(this);
  }

 private:
  Stuck& stuck_;
  std::mutex mutex_;
  bool taken_ = false;
};

/// A condition variable for Lock: a wake-up that nobody waits for is lost.
class Condition {
 public:
  explicit Condition(Stuck& stuck) : stuck_(stuck) {}

  /// Releases `held`, sleeps until notify(), and takes it again.
  void wait(Lock& held) {
    std::unique_lock lock(mutex_);
    const int before = notified_;
    held.give_back_without_step();
    while (notified_ == before && !stuck_.is_stuck()) stuck_.sleep(this, lock);
    lock.unlock();
    held.take();
  }
  /// Sleeps until notify() without a lock.
  void wait() {
    std::unique_lock lock(mutex_);
    const int before = notified_;
    while (notified_ == before && !stuck_.is_stuck()) stuck_.sleep(this, lock);
  }
  void notify() {
    {
      const std::lock_guard lock(mutex_);
      ++notified_;
    }
    schedule::wake(this);
  }

 private:
  Stuck& stuck_;
  std::mutex mutex_;
  int notified_ = 0;
};
