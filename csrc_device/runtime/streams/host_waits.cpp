#include "csrc_device/runtime/host_waits.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "base/fork.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"

namespace vdev {
namespace {

struct ThreadRecord;

/// Holds the records of the threads that have waited.
struct Threads {
  std::mutex mutex;
  std::set<const ThreadRecord*> records;
  const base::ProcessMark made;

  static Threads& of_this_process() {
    static base::OnePerProcess<Threads> one;
    return one.get();
  }
};

struct ThreadRecord {
  ThreadRecord() { add(); }
  ~ThreadRecord() {
    if (threads->made.inherited()) return;  // the set belongs to the parent
    std::lock_guard lock(threads->mutex);
    threads->records.erase(this);
  }
  void add() {
    threads = &Threads::of_this_process();
    std::lock_guard lock(threads->mutex);
    threads->records.insert(this);
  }

  const pthread_t thread = pthread_self();
  Threads* threads = nullptr;
  // The count is odd while the thread waits. Only the thread itself writes it. The release store pairs with
  // the acquire load in waiting_threads(). A reader may conclude nothing else from the count than whether the
  // thread is in the same wait as before.
  std::atomic<std::uint64_t> count{0};
};

ThreadRecord& own_record() {
  thread_local ThreadRecord record;
  if (record.threads->made.inherited()) record.add();
  return record;
}

void count_on() {
  auto& count = own_record().count;
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace

HostWait::HostWait() noexcept {
  count_on();
}

HostWait::~HostWait() {
  count_on();
}

std::vector<WaitingThread> waiting_threads() {
  std::vector<WaitingThread> result;
  Threads& threads = Threads::of_this_process();
  std::lock_guard lock(threads.mutex);
  for (const ThreadRecord* record : threads.records) {
    const auto count = record->count.load(std::memory_order_acquire);
    if (count % 2 == 1) result.push_back({record->thread, count});
  }
  return result;
}

bool queues_stand_still(const std::vector<pthread_t>& blocked) {
  return std::ranges::all_of(queues_alive(), [&](const auto& queue) { return queue->stands_still(blocked); });
}

}  // namespace vdev
