// Finds accesses to the same memory between which a program has put no order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "sanitizer/memory/access.hpp"
#include "sanitizer/memory/addresses.hpp"
#include "sanitizer/memory/block.hpp"
#include "sanitizer/memory/clock.hpp"

namespace sanitizer {

/// Follows the lanes of a program: host threads, streams and communicators, which the caller numbers from 0
/// on. The caller tells what each lane does in the order in which the program calls for it, and when a lane
/// waits for another. The verdict depends on these calls alone, and not on when the work runs.
///
/// Needs at most kMostAccesses accesses (about 100 bytes each) for each live allocation, and as much for
/// kMostFreed allocations that were freed while an access was not ordered before their reuse. Thread-safe.
class Detector {
 public:
  static constexpr std::size_t kMostFreed = 4096;

  /// Returns whether the point is one of this detector's.
  bool has_made(const Point& point) const { return point && point->detector == number_; }

  /// Makes a point of this detector from what others know of the lanes.
  Point point_from(VectorClock clock) const;
  /// Returns the point behind everything that the lane has done and that comes before its next action.
  Point point(Lane lane);
  /// Puts `point` before everything that the lane does from now on. Returns whether that orders anything that
  /// was not ordered before. A point of another detector orders nothing: its lanes are others.
  bool wait(Lane lane, const Point& point);
  /// Does the same with everything that `other` has done until now.
  bool wait(Lane lane, Lane other);

  /// Records accesses that `lane` makes now, all at once: they do not race with each other. Returns the races
  /// with earlier ones, at most one for each access.
  std::vector<Race> access(Lane lane, Site site, std::span<const Access> accesses);
  /// Does the same for work that was given to the lane at a point in the past, where `before` was before it.
  std::vector<Race> access(Lane lane, const Point& before, Site site, std::span<const Access> accesses);
  /// Returns those of the accesses that read allocated memory of which nothing was written.
  std::vector<Race> unwritten(Lane lane, Site site, std::span<const Access> accesses);

  /// Tells that memory was allocated for `stream`: only that lane may use it without a wait. Others have to
  /// be behind what that lane has done until now, which may have used the memory, as scratch memory at least,
  /// and behind what it has waited for, which may be the last use of the memory's earlier life. So the
  /// allocation counts as a write of the lane's last action, with those waits. Accesses of the memory's
  /// earlier life are remembered, unless the allocator has waited for them: for another stream, it has waited
  /// for everything.
  void allocated(const void* block, std::size_t bytes, Lane stream, Site site);
  /// Tells that memory will not be given out again before `stream` has reached the point where it is freed
  /// (record_stream()).
  void keep_for(const void* block, Lane stream);
  /// Tells that an operation holds the memory, which is not freed before `end` unless let_go() comes first.
  void hold(const void* block, const Point& end);
  void let_go(const void* block, const Point& end);
  /// Returns whether the place of the release may have to be told: accesses are left that are not ordered
  /// before the memory's next life, or owner_of() was called for it. Then freed_at() can name the place,
  /// which is known only at some cost.
  bool freed(const void* block);
  void freed_at(const void* block, Site site);
  /// Tells that the allocator has given back what it kept of freed memory, for which it waits for the
  /// streams.
  void released();
  /// Serves memory that a program uses through a pointer which it has taken (Addresses).
  std::optional<Owner> owner_of(const void* byte);
  std::optional<Gone> end_of(const Owner& owner);
  std::optional<Gone> gone_at(const void* byte);
  /// Forgets memory without a later life, such as the host's.
  void forget(const void* block);

  /// Returns the remembered accesses of one allocation.
  std::vector<PastAccess> past_of(const void* block);
  /// Returns the accesses that are remembered, each with the block that it belongs to, as accesses of one
  /// action. Used for a graph, whose calls were told to a detector of its own.
  std::vector<Access> remembered();

 private:
  struct LaneState {
    VectorClock clock;          // has the lane's own time, too
    std::uint64_t version = 0;  // counts changes of `clock` but for the lane's own time
    bool has_waited = false;    // since its last action
    Point last;                 // what point() returned for this clock, or null
    // The lane that was last waited for, with its version then: joining it again needs its own time only.
    Lane waited_for = 0;
    std::uint64_t waited_version = 0;
  };

  /// Returns the state of a lane, which may be new.
  LaneState& state(Lane lane) {
    if (lane >= lanes_.size()) lanes_.resize(lane + 1);
    return lanes_[lane];
  }
  bool join(Lane lane, const VectorClock& clock);
  Point point_of(LaneState& its);
  std::vector<Race> add(Lane lane, Time time, const VectorClock& before, Site site,
                        std::span<const Access> accesses);

  static std::uint64_t next_number() noexcept;

  const std::uint64_t number_ = next_number();
  std::mutex mutex_;
  std::deque<LaneState> lanes_;  // growing it moves no state
  std::unordered_map<const void*, Block> blocks_;
  std::multimap<std::uintptr_t, Block> freed_;  // by address; only blocks that still have a past
  std::size_t longest_freed_ = 0;               // bytes
  Addresses addresses_;
};

}  // namespace sanitizer
