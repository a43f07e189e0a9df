#include "csrc_device/runtime/interruption.hpp"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

std::atomic<InterruptionSource> source{nullptr};

// Only the main thread uses it. It is never destroyed, because the exception may be an object of an
// interpreter that is gone by then.
Interruption& pending() {
  static auto* interruption = new Interruption;
  return *interruption;
}

// Every thread reads it when it leaves a wait. Only the main thread writes it and acts on it, so no memory
// order is needed.
std::atomic<bool> is_pending{false};

// After a fork, the kernel and Python take the thread that forked for the child's main thread.
bool on_main_thread() noexcept {
  return gettid() == getpid();
}

}  // namespace

void set_interruption_source(InterruptionSource new_source) noexcept {
  source.store(new_source);
}

bool interruptible() noexcept {
  return source.load(std::memory_order_relaxed) != nullptr && on_main_thread();
}

bool interruption_pending() noexcept {
  return is_pending.load(std::memory_order_relaxed) && on_main_thread();
}

bool interrupted() {
  if (!interruptible()) return false;
  if (is_pending.load(std::memory_order_relaxed)) return true;
  auto found = source.load()();
  // The source has run signal handlers, in which another wait may have been interrupted.
  if (!found.error) return is_pending.load(std::memory_order_relaxed);
  pending() = std::move(found);
  is_pending.store(true, std::memory_order_relaxed);
  return true;
}

std::string interruption_name() {
  return interruption_pending() ? pending().name : std::string();
}

std::exception_ptr take_interruption() noexcept {
  if (!interruption_pending()) return nullptr;
  is_pending.store(false, std::memory_order_relaxed);
  return std::exchange(pending(), {}).error;
}

void raise_interruption() {
  if (Queue::inside_task()) return;
  if (const auto error = take_interruption()) std::rethrow_exception(error);
}

void Interruptibles::add(const std::shared_ptr<Interruptible>& user) {
  std::lock_guard lock(mutex_);
  std::erase_if(users_, [&](const auto& known) { return known.expired(); });
  for (const auto& known : users_)
    if (known.lock() == user) return;
  users_.push_back(user);
}

void Interruptibles::interrupt(const std::string& reason) const {
  std::vector<std::shared_ptr<Interruptible>> users;  // called, and destroyed, without the lock
  {
    std::lock_guard lock(mutex_);
    for (const auto& known : users_)
      if (auto user = known.lock()) users.push_back(std::move(user));
  }
  for (const auto& user : users) user->interrupt(reason);
}

}  // namespace vdev
