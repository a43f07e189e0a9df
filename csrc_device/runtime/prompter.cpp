#include "csrc_device/runtime/prompter.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/signals.hpp"

namespace vdev {
namespace {

// A tick takes a core from whoever computes there: measured, 37 microseconds of a collective's 8 where it
// hits one. While every task finds its waiter the ticks become rarer; once one does not, they are frequent
// again.
constexpr auto kTick = std::chrono::milliseconds(1), kRareTick = std::chrono::milliseconds(4);

class Prompter {
 public:
  void watch(std::weak_ptr<Queue> queue);
  void stop();

  const int generation = fork_generation();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::weak_ptr<Queue>> watched_;
  bool stopped_ = false;
  std::thread thread_;
};

void Prompter::watch(std::weak_ptr<Queue> queue) {
  std::unique_lock lock(mutex_);
  if (stopped_) return;
  watched_.push_back(std::move(queue));
  if (!thread_.joinable()) {
    SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "vdev prompter");
  }
  lock.unlock();
  news_.notify_one();
}

void Prompter::run() {
  std::unique_lock lock(mutex_);
  auto tick = kTick;
  while (!stopped_) {
    if (watched_.empty()) {
      tick = kTick;
      news_.wait(lock);
      continue;
    }
    news_.wait_for(lock, tick, [&] { return stopped_; });
    auto looked_at = std::exchange(watched_, {});
    lock.unlock();
    // Without the lock: a queue that goes with the last pointer, taken here, may come back to us.
    tick = std::min(2 * tick, kRareTick);
    std::erase_if(looked_at, [&](const std::weak_ptr<Queue>& watched) {
      const auto queue = watched.lock();
      const auto found = queue ? queue->prompt() : Queue::Prompted::kQuiet;
      if (found == Queue::Prompted::kLeftAlone) tick = kTick;
      return found == Queue::Prompted::kQuiet;
    });
    lock.lock();
    watched_.insert(watched_.end(), looked_at.begin(), looked_at.end());
  }
}

void Prompter::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  news_.notify_one();
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

void watch(std::weak_ptr<Queue> queue) noexcept {
  try {
    prompter().watch(std::move(queue));
  } catch (const std::system_error&) {
    // No thread to be had.
  }
}

void stop_prompter() noexcept {
  prompter().stop();
}

}  // namespace vdev
