#include "csrc_device/runtime/spoiled_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fork.hpp"
#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"

namespace vdev {

void SpoiledMark::free_at(std::uint64_t when, std::shared_ptr<const QueuePoints> tasks) {
  freed_ = when;
  tasks_ = std::move(tasks);
  failure_->spoils_.fetch_sub(1);
}

bool SpoiledMark::is_forgotten() const {
  return is_freed() && tasks_->passed();
}

SpoiledMemory& spoiled_memory() {
  static base::OnePerProcess<SpoiledMemory> one;
  return one.get([](SpoiledMemory&, const SpoiledMemory&) {
    SpoiledMemory::any_.store(false, std::memory_order_relaxed);
  });
}

/// Returns the first piece that does not end at or before `at`. The caller holds the lock.
SpoiledMemory::Pieces::const_iterator SpoiledMemory::first_after(Address at) const {
  auto next = pieces_.upper_bound(at);
  if (next != pieces_.begin() && std::prev(next)->second.end > at) return std::prev(next);
  return next;
}

/// Cuts the piece around `at` in two and returns the first piece that begins at or after `at`. The caller
/// holds the lock.
SpoiledMemory::Pieces::iterator SpoiledMemory::cut(Address at) {
  auto next = pieces_.lower_bound(at);
  if (next == pieces_.begin()) return next;
  auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Piece rest = before->second;
  before->second.end = at;
  return pieces_.emplace_hint(next, at, std::move(rest));
}

/// Removes the pieces in the range and returns them, for the caller to destroy without the lock. The last
/// pointer to a failure destroys an exception, whose destructor may call this object. The caller holds the
/// lock.
std::vector<SpoiledMemory::Pieces::node_type> SpoiledMemory::take_out(Address begin, Address end) {
  std::vector<Pieces::node_type> gone;
  cut(end);
  for (auto it = cut(begin); it != pieces_.end() && it->first < end;) gone.push_back(pieces_.extract(it++));
  return gone;
}

/// The caller holds the lock.
void SpoiledMemory::update_any() {
  any_.store(!pieces_.empty(), std::memory_order_relaxed);
}

/// Adds the mark to the range, but not where a mark of the same owner has the same effect. The caller holds
/// the lock.
void SpoiledMemory::mark(Address begin, Address end, const SpoiledMark& mark) {
  cut(end);
  auto it = cut(begin);
  for (Address at = begin; at < end;) {
    if (it == pieces_.end() || it->first > at) {
      const Address stop = it == pieces_.end() ? end : std::min(end, it->first);
      pieces_.emplace_hint(it, at, Piece{stop, {mark}});
      at = stop;
      continue;
    }
    auto& marks = it->second.marks;
    const bool known = std::ranges::any_of(marks, [&](const SpoiledMark& other) {
      return !other.is_freed() && other.failure()->owner() == mark.failure()->owner();
    });
    if (!known) marks.push_back(mark);
    at = it->second.end;
    ++it;
  }
  any_freed_ |= mark.is_freed();
}

/// Spoils the range for those who may read what the running task writes. The caller holds the lock, and
/// any() is true already, so that a free() that does not find the marks is found by the look at the blocks.
void SpoiledMemory::spoil_locked(Address begin, Address end, const FailurePtr& failure) {
  const auto task = Queue::running_since();
  const SpoiledMark plain(failure, task.value_or(MemoryClock::now()));
  const int index = task ? card_of(begin) : -1;
  if (index < 0) return mark(begin, end, plain);
  const auto blocks = card(index).allocator().live_blocks(begin, end);
  std::shared_ptr<const QueuePoints> tasks;
  const auto freed = [&](Address from, Address to, std::uint64_t when) {
    if (from >= to) return;
    if (!tasks) tasks = std::make_shared<const QueuePoints>();
    SpoiledMark gone = plain;
    gone.free_at(when, tasks);
    mark(from, to, gone);
  };
  Address at = begin;
  for (const auto& block : blocks) {
    freed(at, block.begin, MemoryClock::next());  // nobody owns what lies between two blocks
    if (block.born > *task)
      freed(block.begin, block.end, block.born);
    else
      mark(block.begin, block.end, plain);
    at = block.end;
  }
  freed(at, end, MemoryClock::next());
}

void SpoiledMemory::spoil(const void* begin, std::size_t bytes, const FailurePtr& failure) {
  if (bytes == 0) return;
  const auto* first = static_cast<Address>(begin);
  std::vector<SpoiledMark> gone;
  std::lock_guard lock(mutex_);
  // Checked under the lock that forget_dealt_with() takes, so that no range of the failure is added after
  // that call.
  if (failure->dealt_with()) return;
  any_.store(true, std::memory_order_relaxed);
  forget_freed(gone);
  spoil_locked(first, first + bytes, failure);
  update_any();
}

FailurePtr SpoiledMemory::find(const void* begin, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto* first = static_cast<Address>(begin);
  const std::uint64_t enqueued = Queue::running_since().value_or(SpoiledMark::kNever);
  std::vector<SpoiledMark> gone;
  std::lock_guard lock(mutex_);
  forget_freed(gone);
  for (auto it = first_after(first); it != pieces_.end() && it->first < first + bytes; ++it) {
    for (const SpoiledMark& mark : it->second.marks) {
      if (mark.visible_at(enqueued)) return mark.failure();
    }
  }
  return nullptr;
}

void SpoiledMemory::renew(const void* begin, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* first = static_cast<Address>(begin);
  std::vector<Pieces::node_type> gone;
  std::lock_guard lock(mutex_);
  if (first_after(first) == pieces_.end()) return;
  gone = take_out(first, first + bytes);
  update_any();
}

void SpoiledMemory::freed(const void* begin, std::size_t bytes, std::uint64_t when) {
  if (bytes == 0) return;
  const auto* first = static_cast<Address>(begin);
  std::shared_ptr<const QueuePoints> tasks;
  std::vector<SpoiledMark> gone;
  std::lock_guard lock(mutex_);
  const auto found = first_after(first);
  if (found == pieces_.end() || found->first >= first + bytes) return;
  cut(first + bytes);
  for (auto it = cut(first); it != pieces_.end() && it->first < first + bytes; ++it) {
    for (SpoiledMark& mark : it->second.marks) {
      if (mark.is_freed() || mark.made() >= when) continue;  // of an earlier owner, or of a later one
      if (!tasks) tasks = std::make_shared<const QueuePoints>();
      mark.free_at(when, tasks);
      any_freed_ = true;
    }
  }
  forget_freed(gone);
  update_any();
}

/// Removes the marks that `forgets` names. They are destroyed by the caller, without the lock. The caller
/// holds the lock.
template <class Forgets>
void SpoiledMemory::forget_marks(const Forgets& forgets, std::vector<SpoiledMark>& gone) {
  for (auto it = pieces_.begin(); it != pieces_.end();) {
    auto& marks = it->second.marks;
    const auto left =
        std::ranges::stable_partition(marks, [&](const SpoiledMark& mark) { return !forgets(mark); });
    std::ranges::move(left, std::back_inserter(gone));
    marks.erase(left.begin(), left.end());
    it = marks.empty() ? pieces_.erase(it) : std::next(it);
  }
  update_any();
}

/// Forgets marks of freed memory that no task can see any more. The caller holds the lock.
void SpoiledMemory::forget_freed(std::vector<SpoiledMark>& gone) {
  if (!any_freed_) return;
  bool left = false;
  forget_marks(
      [&](const SpoiledMark& mark) {
        if (mark.is_forgotten()) return true;
        left |= mark.is_freed();
        return false;
      },
      gone);
  any_freed_ = left;
}

void SpoiledMemory::spoil(const StridedMemory& memory, const FailurePtr& failure) {
  const auto each = [&](const std::byte* begin, std::size_t bytes) { spoil(begin, bytes, failure); };
  if (!for_each_run(memory, kMostRuns, each)) spoil(memory.data, span_of(memory), failure);
}

FailurePtr SpoiledMemory::find(const StridedMemory& memory) {
  auto found = find(memory.data, span_of(memory));
  if (!found) return nullptr;
  FailurePtr in_a_run;
  const auto each = [&](const std::byte* begin, std::size_t bytes) {
    if (!in_a_run) in_a_run = find(begin, bytes);
  };
  return for_each_run(memory, kMostRuns, each) ? in_a_run : found;
}

void SpoiledMemory::renew(const StridedMemory& memory) {
  if (!find(memory.data, span_of(memory))) return;
  for_each_run(memory, kMostRuns, [&](const std::byte* begin, std::size_t bytes) { renew(begin, bytes); });
}

void SpoiledMemory::copied(const void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* target = static_cast<Address>(to);
  const auto* source = static_cast<Address>(from);
  const std::uint64_t enqueued = Queue::running_since().value_or(SpoiledMark::kNever);
  std::vector<Pieces::node_type> gone;
  std::lock_guard lock(mutex_);
  struct Found {
    Address begin, end;
    FailurePtr failure;
  };
  std::vector<Found> found;
  for (auto it = first_after(source); it != pieces_.end() && it->first < source + bytes; ++it) {
    for (const SpoiledMark& mark : it->second.marks) {
      if (!mark.visible_at(enqueued)) continue;
      found.push_back(
          {std::max(it->first, source), std::min(it->second.end, source + bytes), mark.failure()});
    }
  }
  gone = take_out(target, target + bytes);
  for (const auto& [begin, end, failure] : found)
    spoil_locked(target + (begin - source), target + (end - source), failure);
  update_any();
}

void SpoiledMemory::forget_dealt_with() {
  std::vector<SpoiledMark> gone;
  std::lock_guard lock(mutex_);
  forget_marks([](const SpoiledMark& mark) { return mark.failure()->dealt_with(); }, gone);
}

}  // namespace vdev
