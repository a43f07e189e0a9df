#include "csrc_pg/handles/callback_pool.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/schedule.hpp"
#include "csrc_device/runtime/interruption.hpp"

namespace vccl {
namespace {

constexpr std::chrono::seconds kIdle{5};

class Pool {
 public:
  void post(std::function<void()> job) {
    std::unique_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    ++unfinished_;
    if (idle_ >= jobs_.size()) {
      wake_.notify_one();
      return;
    }
    lock.unlock();
    // The thread is detached, because a callback may take as long as it likes, and a join at exit might never
    // return. The pool itself is never destroyed.
    const base::schedule::NewThread scheduled;
    std::thread([this, scheduled] {
      scheduled.begin();
      serve();
      base::schedule::end_thread();
    }).detach();
  }

  bool wait_until_finished(std::chrono::milliseconds patience) {
    const base::schedule::Outside elsewhere;  // ends behind the lock
    std::unique_lock lock(mutex_);
    return vdev::wait_interruptibly(finished_, lock, std::chrono::steady_clock::now() + patience,
                                    [this] { return unfinished_ == 0; });
  }

 private:
  void serve() {
    while (auto job = next()) {
      job();
      job = nullptr;  // destroyed without the lock, because destroying Python objects takes the GIL
      std::lock_guard lock(mutex_);
      if (--unfinished_ == 0) finished_.notify_all();
    }
  }

  /// Returns the next job, or nothing if none has come for a while.
  std::function<void()> next() {
    const base::schedule::Outside elsewhere;  // ends behind the lock
    std::unique_lock lock(mutex_);
    ++idle_;
    const bool found = wake_.wait_for(lock, kIdle, [this] { return !jobs_.empty(); });
    --idle_;
    if (!found) return nullptr;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<std::function<void()>> jobs_;
  std::size_t idle_ = 0;
  std::size_t unfinished_ = 0;
};

Pool& pool() {
  static auto* all = new Pool;
  return *all;
}

}  // namespace

void run_callback(std::function<void()> job) {
  pool().post(std::move(job));
}

bool wait_for_callbacks(std::chrono::milliseconds patience) {
  return pool().wait_until_finished(patience);
}

}  // namespace vccl
