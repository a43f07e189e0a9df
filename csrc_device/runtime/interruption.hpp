// Waits that end when the calling thread is interrupted, above all by Ctrl-C.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/periods.hpp"

namespace vdev {

/// Describes an interruption of the waits of a thread.
struct Interruption {
  std::exception_ptr error;  // to be raised in the interrupted thread; null if nothing interrupts it
  std::string name;          // "KeyboardInterrupt", for messages
};

/// Returns the interruption of the calling thread, if there is one. The thread is the process's main thread
/// and holds no lock. The function may run foreign code, such as Python's signal handlers.
using InterruptionSource = Interruption (*)();

/// Sets the source for the rest of the process. Without a source, nothing is interrupted. Only the main
/// thread is interrupted, because Python runs signal handlers on that thread.
void set_interruption_source(InterruptionSource source) noexcept;

/// Returns the time at which a sleeping wait is to ask for an interruption again.
inline std::chrono::steady_clock::time_point next_look() {
  return std::chrono::steady_clock::now() + base::kInterruptionPeriod;
}

/// Returns whether the calling thread can be interrupted at all.
bool interruptible() noexcept;
/// Returns whether the calling thread is interrupted. Asks the source, unless an interruption from it is
/// still pending. While an interruption is pending, every wait of the thread ends early.
bool interrupted();
/// Returns whether an interruption of the calling thread is pending. Does not ask the source.
bool interruption_pending() noexcept;
/// Returns the name of the pending interruption, or an empty string if there is none.
std::string interruption_name();
/// Raises the pending interruption of the calling thread, once. Returns if there is none. Inside a task of a
/// stream it always returns, because an exception that leaves the task would become the stream's error.
void raise_interruption();
/// Removes the pending interruption of the calling thread and returns it, or null if there is none.
std::exception_ptr take_interruption() noexcept;

/// An Interruptible can end a wait when the waiting thread is interrupted.
class Interruptible {
 public:
  virtual ~Interruptible() = default;
  /// Makes the operation that is under way fail soon, on this rank and on its peers. `reason` is for
  /// messages. May be called from any thread, and never blocks.
  virtual void interrupt(const std::string& reason) noexcept = 0;
};

/// Holds the objects that end what threads wait for. Thread-safe.
class Interruptibles {
 public:
  /// Adding the same object again changes nothing. An object that is gone counts no more.
  void add(const std::shared_ptr<Interruptible>& user);
  /// Calls interrupt() of every object.
  void interrupt(const std::string& reason) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Interruptible>> users_;
};

/// Waits until `ready()`, and returns true then. Returns false if `deadline` has passed or the calling thread
/// is interrupted before.
template <class Ready>
bool wait_interruptibly(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                        std::chrono::steady_clock::time_point deadline, Ready ready) {
  const bool looks = interruptible();
  while (!ready()) {
    const auto end = looks ? std::min(deadline, next_look()) : deadline;
    if (changed.wait_until(lock, end) != std::cv_status::timeout) continue;
    if (ready()) return true;
    if (end == deadline) return false;
    lock.unlock();
    const bool give_up = interrupted();
    lock.lock();
    if (give_up) return ready();
  }
  return true;
}

}  // namespace vdev
