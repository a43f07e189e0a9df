#include "csrc_device/runtime/spoiled_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fork.hpp"

namespace vdev {

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

/// The caller holds the lock.
void SpoiledMemory::spoil_locked(Address begin, Address end, const FailurePtr& failure) {
  cut(end);
  auto it = cut(begin);
  for (Address at = begin; at < end;) {
    if (it == pieces_.end() || it->first > at) {
      const Address stop = it == pieces_.end() ? end : std::min(end, it->first);
      pieces_.emplace_hint(it, at, Piece{stop, {failure}});
      at = stop;
      continue;
    }
    auto& failures = it->second.failures;
    const bool known =
        std::ranges::any_of(failures, [&](const auto& other) { return other->owner() == failure->owner(); });
    if (!known) failures.push_back(failure);
    at = it->second.end;
    ++it;
  }
}

void SpoiledMemory::spoil(const void* begin, std::size_t bytes, const FailurePtr& failure) {
  if (bytes == 0) return;
  const auto* first = static_cast<Address>(begin);
  std::lock_guard lock(mutex_);
  // Checked under the lock that forget_dealt_with() takes, so that no range of the failure is added after
  // that call.
  if (failure->dealt_with()) return;
  spoil_locked(first, first + bytes, failure);
  update_any();
}

FailurePtr SpoiledMemory::find(const void* begin, std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  const auto* first = static_cast<Address>(begin);
  std::lock_guard lock(mutex_);
  const auto found = first_after(first);
  if (found == pieces_.end() || found->first >= first + bytes) return nullptr;
  return found->second.failures.front();
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

void SpoiledMemory::spoil(const StridedMemory& memory, const FailurePtr& failure) {
  const auto each = [&](const std::byte* begin, std::size_t bytes) { spoil(begin, bytes, failure); };
  if (!for_each_run(memory, kMostRuns, each)) spoil(memory.data, span_of(memory), failure);
}

FailurePtr SpoiledMemory::find(const StridedMemory& memory) const {
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
  std::vector<Pieces::node_type> gone;
  std::lock_guard lock(mutex_);
  std::vector<std::pair<Address, Piece>> found;
  for (auto it = first_after(source); it != pieces_.end() && it->first < source + bytes; ++it)
    found.emplace_back(std::max(it->first, source),
                       Piece{std::min(it->second.end, source + bytes), it->second.failures});
  gone = take_out(target, target + bytes);
  for (const auto& [begin, piece] : found) {
    for (const auto& failure : piece.failures)
      spoil_locked(target + (begin - source), target + (piece.end - source), failure);
  }
  update_any();
}

void SpoiledMemory::forget_dealt_with() {
  std::vector<FailurePtr> gone;
  std::lock_guard lock(mutex_);
  for (auto it = pieces_.begin(); it != pieces_.end();) {
    auto& failures = it->second.failures;
    const auto left =
        std::ranges::stable_partition(failures, [](const auto& failure) { return !failure->dealt_with(); });
    std::ranges::move(left, std::back_inserter(gone));
    failures.erase(left.begin(), left.end());
    it = failures.empty() ? pieces_.erase(it) : std::next(it);
  }
  update_any();
}

}  // namespace vdev
