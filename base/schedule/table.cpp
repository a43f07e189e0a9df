#include "base/schedule/table.hpp"

#include <cerrno>
#include <thread>

#include "base/clock.hpp"
#include "base/schedule/policy.hpp"

namespace base::schedule {
namespace {

void make_mutex(pthread_mutex_t& mutex) noexcept {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

void fill(Table& table, const Plan& plan) noexcept {
  table.kind = plan.kind;
  table.depth = plan.depth;
  table.exact = plan.exact;
  table.shared = !plan.turns.empty();
  table.awaited = table.shared ? plan.processes : 1;
  table.arrived = 0;
  table.started = monotonic_ns();
  table.seed = plan.seed;
  table.steps = table.trace = table.taken = table.progress = 0;
  table.lowest = 0;
  table.holder = table.last = kNobody;
  table.chooser_pid = table.chooser_thread = 0;
  draw_beginning(table);
  for (Slot& slot : table.slots) {
    slot.state = State::none;
    slot.turn.store(0, std::memory_order_relaxed);
  }
}

}  // namespace

void TableLock::lock() noexcept {
  if (pthread_mutex_lock(&table_.mutex) == EOWNERDEAD) pthread_mutex_consistent(&table_.mutex);
  locked_ = true;
}

void TableLock::unlock() noexcept {
  pthread_mutex_unlock(&table_.mutex);
  locked_ = false;
}

void make_table(Table& table, const Plan& plan) noexcept {
  std::uint32_t made = 0;
  if (table.made.compare_exchange_strong(made, 1)) {
    make_mutex(table.mutex);
    fill(table, plan);
    table.made.store(2);  // releases what was written to whoever sees it
  }
  // A process that dies in between leaves the others here for a moment only.
  const std::int64_t end = monotonic_ns() + 1'000'000'000;
  while (table.made.load() != 2 && monotonic_ns() < end) std::this_thread::yield();
}

void reset_table(Table& table, const Plan& plan) noexcept {
  const TableLock lock(table);
  fill(table, plan);
}

}  // namespace base::schedule
