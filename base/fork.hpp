// Detects that this process is a forked child of the process that made an object.
#pragma once

#include <atomic>

namespace base {

/// Returns how many forks lie between the process that called this first and this process. This function is
/// async-signal-safe after its first call.
int fork_generation() noexcept;

/// Remembers in which process an object was made. A forked child has a copy of the object but none of its
/// threads, and a lock of the copy may stay locked for ever. The child must therefore take no lock of the
/// copy and join no thread.
class ProcessMark {
 public:
  ProcessMark() noexcept : generation_(fork_generation()) {}
  /// Returns whether this process is a forked child of the process that made the mark.
  bool inherited() const noexcept { return generation_ != fork_generation(); }

 private:
  int generation_;
};

/// Holds one T for the whole process. The first call of get() makes the T. It is never destroyed, because
/// threads and static objects may use it until the process ends. A forked child gets a T of its own, because
/// another thread of the parent may have held a lock of the parent's T during the fork. A OnePerProcess must
/// be a static variable.
template <class T>
class OnePerProcess {
 public:
  T& get() {
    return get([](T&, const T&) {});
  }

  /// Calls `inherit(own, parents)` on a forked child's new T before any other thread can see it.
  template <class Inherit>
  T& get(Inherit inherit) {
    Entry* found = current_.load(std::memory_order_acquire);
    while (found == nullptr || found->made.inherited()) {
      auto* fresh = new Entry;
      if (found != nullptr) inherit(fresh->value, found->value);
      // The exchange releases, and the loads of `current_` acquire: a thread that loads the pointer sees what
      // the constructor and `inherit` wrote.
      if (current_.compare_exchange_strong(found, fresh, std::memory_order_acq_rel,
                                           std::memory_order_acquire))
        return fresh->value;
      delete fresh;
    }
    return found->value;
  }

 private:
  struct Entry {
    ProcessMark made;
    T value;
  };
  std::atomic<Entry*> current_{nullptr};
};

}  // namespace base
