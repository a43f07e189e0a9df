// What the allocators of the cards did, and where the program stood then: the events that
// torch.vdev.memory._record_memory_history() asks for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace vdev {

/// Says where the program stood. The torch room makes and reads it (a traceback); the runtime only keeps it.
using CallSite = std::shared_ptr<void>;

struct AllocatorEvent {
  enum class Action : std::uint8_t {
    alloc,
    free_requested,  // the program freed the block, which other streams may still use
    free_completed,  // the block can be handed out again
    segment_alloc,
    segment_free,
    out_of_memory,  // `size` is what was asked for, and `address` the free bytes of the card
    snapshot,
  };
  static constexpr std::size_t kActions = 7;

  Action action;
  std::uintptr_t address;
  std::size_t size;
  CallSite site;  // may be null
  std::int64_t stream = 0;
  std::uint64_t pool = 0;  // PoolNumber
  // AllocatorHistory::add() sets the next two.
  std::int64_t time = 0;                               // microseconds since 1970
  std::shared_ptr<const std::string> label = nullptr;  // may be null
};

/// Says what is recorded, for all cards of the process.
struct HistorySettings {
  /// For what the place in the program is noted. Each value includes the ones before it.
  enum class Sites : std::uint8_t {
    none,
    blocks,       // for blocks that are handed out
    allocations,  // for the events of allocations, too
    all,          // for the events of frees, too
  };
  Sites sites = Sites::none;
  bool events = false;
  std::size_t most_events = 0;  // for each card; older events are forgotten
  bool skips[AllocatorEvent::kActions] = {};
  CallSite (*gather)() = nullptr;
};

/// Sets what is recorded from now on. Thread-safe.
void record_history(const HistorySettings& settings);
HistorySettings history_settings();
/// Sets a text that events carry from now on. No label for an empty text. Thread-safe.
void label_history(const std::string& label);
std::string history_label();

/// Returns where the caller stands if that is noted for `sites`, or null. A task has no place in the program.
/// Call this without a lock, because it may take the GIL.
CallSite call_site(HistorySettings::Sites sites);

/// Holds the events of one allocator. Guarded by the allocator's mutex.
class AllocatorHistory {
 public:
  /// Returns whether anything is recorded. This is cheap.
  static bool recording() noexcept { return recording_.load(std::memory_order_relaxed); }

  /// Adds an event, whose time and label it sets. Forgets the oldest one for it if there is no room.
  void add(AllocatorEvent event);
  /// Returns the events, the oldest first.
  std::vector<AllocatorEvent> events() const;
  /// Forgets all events.
  void clear();

  /// Keeps a call site that nobody needs any more until take_unused(), because it may be destroyed only
  /// without the allocator's mutex.
  void drop(CallSite site) {
    if (site) unused_.push_back(std::move(site));
  }
  /// Returns the call sites that were dropped, and those of events that were forgotten.
  std::vector<CallSite> take_unused() { return std::exchange(unused_, {}); }

 private:
  friend void record_history(const HistorySettings& settings);
  static std::atomic<bool> recording_;

  std::vector<AllocatorEvent> ring_;
  std::size_t oldest_ = 0;
  std::vector<CallSite> unused_;
};

}  // namespace vdev
