#include "csrc_pg/handles/completion_hook.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "base/schedule.hpp"
#include "csrc_device/runtime/interruption.hpp"

namespace vccl {

struct CompletionHook::State {
  struct Ended {
    std::shared_ptr<Outcome> outcome;
    c10d::OpType type;
    std::uint64_t sequence;
  };

  Hook hook;  // only the thread uses it, once the thread has started
  std::mutex mutex;
  std::thread::id server;
  std::condition_variable wake;      // the thread sleeps on it
  std::condition_variable returned;  // a hook has returned, or the thread has ended
  std::deque<Ended> ended;
  std::uint64_t watched = 0, called = 0;
  bool closed = false, over = false;
};

namespace {

c10d::WorkInfo info_of(const Outcome& outcome, c10d::OpType type, std::uint64_t sequence) {
  using Clock = std::chrono::steady_clock;
  const auto at = [](std::int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); };
  const std::chrono::duration<float, std::milli> active(outcome.duration_ms());
  return {type, sequence, at(outcome.created_ns()), at(outcome.finished_ns()), active};
}

}  // namespace

CompletionHook::CompletionHook(Hook&& hook) : state_(std::make_shared<State>()) {
  state_->hook = std::move(hook);
  thread_ = std::thread([state = state_] { serve(state); });
}

CompletionHook::~CompletionHook() {
  close(std::chrono::milliseconds(0));
  // A forked child cannot join the parent's thread, and destroying a thread object that was not joined ends
  // the process.
  if (inherited()) new std::thread(std::move(thread_));
}

bool CompletionHook::inherited() const {
  return made_.inherited();
}

void CompletionHook::serve(const std::shared_ptr<State>& state) {
  const base::schedule::Outside always;  // hooks only look at what has ended
  std::unique_lock lock(state->mutex);
  state->server = std::this_thread::get_id();
  for (;;) {
    state->wake.wait(lock, [&] { return state->closed || !state->ended.empty(); });
    if (state->closed) break;
    const auto ended = std::move(state->ended.front());
    state->ended.pop_front();
    lock.unlock();
    try {
      state->hook(std::make_shared<c10d::WorkInfo>(info_of(*ended.outcome, ended.type, ended.sequence)));
    } catch (const std::exception& error) {
      TORCH_WARN("an on-completion hook failed for ", c10d::opTypeToString(ended.type), " (number ",
                 ended.sequence, " of its group): ", error.what());
    }
    lock.lock();
    ++state->called;
    state->returned.notify_all();
  }
  lock.unlock();
  state->hook = nullptr;  // without the lock, because destroying a Python function takes the GIL
  lock.lock();
  state->over = true;
  state->returned.notify_all();
}

void CompletionHook::watch(const std::shared_ptr<Outcome>& outcome, c10d::OpType type,
                           std::uint64_t sequence) {
  if (inherited()) return;
  {
    std::lock_guard lock(state_->mutex);
    ++state_->watched;
  }
  // The callback owns the outcome that keeps it. That is safe, because the outcome keeps the callback only
  // until it is finished.
  outcome->when_finished([state = state_, outcome, type, sequence](std::exception_ptr) {
    std::lock_guard lock(state->mutex);
    state->ended.push_back({outcome, type, sequence});
    state->wake.notify_one();
  });
}

bool CompletionHook::wait(std::chrono::milliseconds patience) {
  if (inherited()) return true;
  const base::schedule::Outside elsewhere;  // ends behind the lock
  std::unique_lock lock(state_->mutex);
  if (std::this_thread::get_id() == state_->server) return true;
  const auto all_called = [this] { return state_->over || state_->called == state_->watched; };
  while (!all_called()) {
    const auto before = state_->called;
    const bool got_on =
        vdev::wait_interruptibly(state_->returned, lock, std::chrono::steady_clock::now() + patience,
                                 [&] { return all_called() || state_->called != before; });
    if (!got_on) return false;
  }
  return true;
}

void CompletionHook::close(std::chrono::milliseconds patience) noexcept {
  if (inherited()) return;
  std::lock_guard closing(closing_);
  if (!thread_.joinable()) return;
  wait(patience);
  {
    std::unique_lock lock(state_->mutex);
    state_->closed = true;
    state_->wake.notify_one();
    if (std::this_thread::get_id() != state_->server) {
      // A hook that is running gets some time even if `patience` is zero, because an ordinary hook is short.
      const auto grace = std::max(patience, std::chrono::milliseconds(100));
      state_->returned.wait_for(lock, grace, [this] { return state_->over; });
    }
    if (!state_->over) {
      lock.unlock();
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

}  // namespace vccl
