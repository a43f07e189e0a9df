// The memory of a schedule: its threads, who of them has the turn, and what was drawn. Processes that share
// one turn share it, so it holds no pointer that another process would follow.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "base/schedule.hpp"

namespace base::schedule {

inline constexpr int kMostThreads = 256;
inline constexpr int kNobody = -1;    // no thread has the turn
inline constexpr int kChoosing = -2;  // a thread chooses the next one, and looks at others meanwhile

enum class State : std::uint32_t {
  none,     // the slot is free
  coming,   // announced, and may have the turn as soon as it runs
  ready,    // waits for the turn
  running,  // has the turn
  blocked,  // sleeps on a channel
  outside,  // waits for something that the schedule does not know
  lost,     // the turn was taken from it
};

struct Slot {
  std::atomic<std::uint32_t> turn;  // futex word: 1 once the thread has the turn
  // Written under the lock. Atomic, because threads look at them without it.
  std::atomic<State> state;
  std::atomic<pid_t> pid;
  std::atomic<pid_t> thread;  // its number in the kernel, 0 before it runs
  std::int32_t process;
  std::uint32_t number;  // among the threads of its process, in the order in which the schedule saw them
  std::uint64_t channel;
  std::int64_t priority;
  std::uint64_t polled;  // the progress at which it has asked in vain
  bool polls;            // has asked, and nothing else since
  bool timed_out;        // goes on before all others, without a draw
};

struct Table {
  std::atomic<std::uint32_t> made;  // 0: all is zero, 1: is being made, 2: made
  pthread_mutex_t mutex;            // robust, and guards what follows
  Kind kind;
  std::int32_t depth;
  bool exact;
  bool shared;
  std::int32_t awaited;  // how many processes have to come before anybody has the turn
  std::int32_t arrived;
  std::int64_t started;  // in monotonic nanoseconds
  std::uint64_t random;
  std::uint64_t seed;
  std::uint64_t steps;
  std::uint64_t trace;
  std::uint64_t taken;
  std::uint64_t progress;                         // of threads that do more than ask
  std::int64_t lowest;                            // below the priorities of all
  std::array<std::uint64_t, kMostDepth> changes;  // the steps at which the running thread comes down, or 0
  std::int32_t holder;                            // a slot, kNobody or kChoosing
  std::int32_t last;                              // the slot that had the turn last
  pid_t chooser_pid, chooser_thread;
  std::array<Slot, kMostThreads> slots;
};

/// Locks a table. If its owner has died, the table is as that one has left it: every change of it is complete
/// for those who come next, or is mended by a watch.
class TableLock {
 public:
  explicit TableLock(Table& table) noexcept : table_(table) { lock(); }
  ~TableLock() {
    if (locked_) pthread_mutex_unlock(&table_.mutex);
  }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;

  void lock() noexcept;
  void unlock() noexcept;

 private:
  Table& table_;
  bool locked_ = false;
};

/// Puts a table into memory of zero bytes, unless another process has done so. The first plan counts.
void make_table(Table& table, const Plan& plan) noexcept;
/// Begins a table anew that only this process has.
void reset_table(Table& table, const Plan& plan) noexcept;

}  // namespace base::schedule
