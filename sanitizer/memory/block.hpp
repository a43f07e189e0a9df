// The past accesses of one allocation.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "sanitizer/memory/access.hpp"
#include "sanitizer/memory/clock.hpp"

namespace sanitizer {

/// Holds an access of which a later one may have to be told.
struct PastAccess {
  Footprint memory;
  Action action;
  Site freed = 0;  // where the memory was freed since; 0 if it was not
  bool is_allocation = false;
};

/// Holds what is known of an allocation, or of memory that nobody has told of before its first access.
///
/// An access is forgotten when a later one that comes after it has touched the same bytes, unless the older
/// one writes and the later one reads. A third access that races with the older one then races with the later
/// one as well, so no race is missed (FastTrack, Flanagan and Freund 2009). More than kMostAccesses are not
/// kept: the oldest one goes, and a race with it is missed.
class Block {
 public:
  static constexpr std::size_t kMostAccesses = 1024;

  /// Calls `race` with every past access that conflicts with `access` and is in neither `before` nor the
  /// memory's past. Then remembers `access`, which `action` did.
  void add(const Access& access, const Action& action, const VectorClock& before,
           const std::function<void(const PastAccess&)>& race);
  /// Returns whether one of these bytes was written since the allocation.
  bool was_written(const Footprint& memory) const;

  /// Adds accesses of an earlier allocation of the same memory.
  void inherit(const PastAccess& past) { past_.push_back(past); }
  std::vector<PastAccess>& past() { return past_; }
  const std::vector<PastAccess>& past() const { return past_; }

  std::size_t bytes = 0;
  Lane stream = 0;       // for which the memory was allocated
  Site allocated = 0;    // 0 if nobody has told of the allocation
  Point born;            // comes before the uses by other lanes; null: the action of the allocation says it
  VectorClock reusable;  // comes before every access: the allocator has waited for it
  std::vector<Lane> kept_for;  // the streams of record_stream()
  std::vector<Point> held;     // the ends of operations that hold the memory

 private:
  void note_written(const Footprint& memory);

  std::vector<PastAccess> past_;

  // What was written since the allocation. Kept apart, because past accesses are forgotten. Nothing is kept
  // once there are too many pieces: then everything counts as written.
  std::vector<Footprint> written_;
  bool all_written_ = false;
};

}  // namespace sanitizer
