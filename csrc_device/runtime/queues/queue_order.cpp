// How queues of one card let each other go first: those of high priority, or whom a schedule draws.
#include <chrono>

#include "base/schedule.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {

// Priorities are a wish that may have no effect, as on a GPU. With a schedule they have none, because giving
// way depends on time.
bool Queue::is_outranked() const noexcept {
  return yields_to_ != nullptr && yields_to_->has_high_work() && !base::schedule::is_on();
}

/// Returns whether run() has to release the lock before the next item, so that others may go first. The
/// caller holds the lock, and there is an item.
bool Queue::lets_others_go_first() const noexcept {
  if (base::schedule::is_on()) return true;
  return is_outranked() && items_.front().kind == Kind::kTask && !items_.front().abandoned;
}

/// Returns the item that the queue begins next, if it needs no task of another queue for that; otherwise
/// null. Null, too, while an item runs that may wait for others, because these may be behind the caller. The
/// caller holds the lock.
const QueueItem* Queue::next_ready() const {
  if (token_.held() && !computes()) return nullptr;
  return items_.next_ready();
}

bool Queue::go_first(std::chrono::steady_clock::time_point end) {
  if (inherited() || running_here()) return false;
  const int computing = queues_computing();
  bool any = false;
  Lock lock(mutex_);
  while (const QueueItem* next = next_ready()) {
    if (std::chrono::steady_clock::now() >= end) break;
    const bool running = token_.held();
    // The caller's task needs a core, and so does a queue that nobody runs.
    const bool spare = computing + !running < task_slots();
    if (!running && !spare && next->runs_without_waiting()) {
      run(lock, items_.last_number(), Runner::kBystander);
      any = true;
      lock.lock();
      continue;
    }
    if (!running && claim_worker(true)) worker_.wake();
    if (spare || (!running && !worker_.exists())) break;
    any |= waiters_.look_on(lock, end, [&, sequence = next->sequence] {
      const QueueItem* now = next_ready();
      return !now || now->sequence != sequence || running != token_.held();
    });
  }
  return any;
}

void Queue::give_way() {
  if (!is_outranked()) return;
  const bool computed = running_here() && token_.pause();
  yields_to_->give_way();
  if (computed) token_.resume();
}

}  // namespace vdev
