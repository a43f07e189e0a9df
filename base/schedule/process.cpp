#include "base/schedule/process.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>

#include "base/descriptor.hpp"
#include "base/futex.hpp"
#include "base/schedule/policy.hpp"
#include "base/schedule/turn.hpp"

namespace base::schedule {
namespace {

constexpr std::uint32_t kUnannounced = 1U << 31;  // the number of the first thread that was not announced

/// The first word and the rest change under `mutex`; the first two are read without it.
struct Process {
  std::atomic<Table*> table{nullptr};
  std::atomic<std::uint64_t> generation{0};
  std::mutex mutex;
  Table* own = nullptr;   // of a process that has a turn of its own: made once, and kept
  Table* last = nullptr;  // of the schedule that has ended
  std::int32_t number = 0;
  bool has_peers = false;
  std::atomic<std::uint32_t> announced{0}, unannounced{0};  // how many threads the schedule has seen
  std::mutex delays_mutex;
  std::optional<Delays> delays;
};

// It is never destroyed: threads may pass a point until the process ends.
Process& process() noexcept {
  static Process* const one = new Process;
  return *one;
}

InterpreterLock lock_of_interpreter{[]() -> void* { return nullptr; }, [](void*) {}, [] { return false; }};

/// A forked child has none of the threads that take part, and would wait for them.
void forget_in_child() {
  detail::on.store(false);
  Process& own = process();
  own.table.store(nullptr);
  own.generation.fetch_add(1);
  // Threads of the parent may have held locks.
  own.own = own.last = nullptr;
  new (&own.mutex) std::mutex;
  new (&own.delays_mutex) std::mutex;
  own.delays.reset();
}

Table* mapped(int file) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "mapping the memory of a schedule");
  return static_cast<Table*>(memory);
}

/// Maps the memory that processes share. It stays mapped, because a thread may look at it at any time.
Table* shared_table(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file || ftruncate(file.get(), sizeof(Table)) != 0)
    throw std::system_error(errno, std::generic_category(), "opening the memory of a schedule, " + path);
  return mapped(file.get());
}

/// Lets the threads of this process go on. The caller holds the mutex of the process.
void end_running(Process& own) noexcept {
  Table* const table = own.table.load();
  if (table == nullptr) return;
  detail::on.store(false);
  own.table.store(nullptr);
  own.generation.fetch_add(1);
  own.last = table;
  TableLock lock(*table);
  const pid_t pid = getpid();
  for (std::size_t i = 0; i < table->slots.size(); ++i) {
    Slot& slot = table->slots[i];
    if (slot.state == State::none || slot.pid != pid) continue;
    if (table->holder == static_cast<std::int32_t>(i)) table->holder = kNobody;
    slot.state = State::none;
    slot.turn.store(1);
    futex_wake(slot.turn);
  }
  if (table->shared) hand_on(*table, lock);
}

void begin_schedule(const Plan& plan) {
  static const bool installed = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;
  (void)installed;
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  Table* table = nullptr;
  if (plan.turns.empty()) {
    if (own.own == nullptr) own.own = mapped(-1);
    table = own.own;
  } else {
    table = shared_table(plan.turns);
  }
  end_running(own);
  make_table(*table, plan);
  if (plan.turns.empty()) reset_table(*table, plan);
  own.number = plan.process;
  own.announced.store(0);
  own.unannounced.store(0);
  {
    const std::lock_guard held(own.delays_mutex);
    own.delays.reset();
    if (plan.turns.empty() && plan.processes > 1) own.delays.emplace(plan);
  }
  {
    TableLock held(*table);
    ++table->arrived;
  }
  own.generation.fetch_add(1);
  own.table.store(table);
  detail::on.store(true);
}

}  // namespace

void start(const Plan& plan) {
  let_others_come_to_rest();
  begin_schedule(plan);
  NewThread().begin();
}

void stop() noexcept {
  let_others_come_to_rest();
  const std::lock_guard lock(process().mutex);
  end_running(process());
}

Report report() noexcept {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  Table* table = own.table.load();
  if (table == nullptr) table = own.last;
  if (table == nullptr) return {};
  const TableLock held(*table);
  return {table->steps, table->trace, table->taken};
}

Running running_schedule() noexcept {
  // The generation is read first: a thread that reads an old one with a new table finds that it is over.
  const std::uint64_t generation = process().generation.load();
  return {process().table.load(), generation};
}

std::uint64_t current_generation() noexcept {
  return process().generation.load();
}

int add_thread(Table& table, State state) noexcept {
  for (std::size_t i = 0; i < table.slots.size(); ++i) {
    Slot& slot = table.slots[i];
    if (slot.state != State::none) continue;
    slot.turn.store(0);
    slot.state = state;
    slot.pid = getpid();
    slot.thread = 0;
    slot.process = process().number;
    slot.number = state == State::coming ? process().announced.fetch_add(1)
                                         : kUnannounced + process().unannounced.fetch_add(1);
    slot.priority = first_priority(table, slot.process, slot.number);
    slot.channel = 0;
    slot.polls = slot.timed_out = false;
    return static_cast<int>(i);
  }
  ++table.taken;
  return kNobody;
}

std::int64_t next_delay() noexcept {
  const std::lock_guard lock(process().delays_mutex);
  return process().delays ? process().delays->next() : 0;
}

void set_interpreter_lock(void* (*release)(), void (*take)(void* state), bool (*held)()) noexcept {
  lock_of_interpreter = {release, take, held};
}

InterpreterLock interpreter_lock() noexcept {
  return lock_of_interpreter;
}

}  // namespace base::schedule
