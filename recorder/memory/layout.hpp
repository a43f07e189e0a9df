// How the flight recorder's memory is laid out: a header, the table of groups, the ring of entries, the
// stacks of the entries' calls if they are recorded, and the ring of the entries' details.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "recorder/flight_entry.hpp"
#include "recorder/memory/versioned.hpp"

namespace vccl::records {

/// The name of the memfd, by which a reader finds it in /proc.
inline constexpr char kMemoryName[] = "vccl-flight-recorder";
inline constexpr std::uint64_t kMagic = 0x00636572'6c636376;  // "vcclrec", with the lowest byte first
inline constexpr std::uint64_t kLayoutVersion = 7;
inline constexpr std::size_t kMostEntries = 1'000'000;
inline constexpr std::size_t kMostGroups = 1024;
inline constexpr std::size_t kDetails =
    1 << 17;  // numbers. The memory of those that are never used is not there.

/// The stack of an entry's call as a text: a line for each frame, the innermost first, as
/// "function\tfile\tline". Or only one line of the program, which many entries name.
struct StackText {
  std::uint64_t number = 0;  // of the entry, or FlightEntry::line
  std::uint64_t length = 0;
  std::array<char, 4064> text;  // only the first `length` are written and read

  static constexpr std::size_t head() { return offsetof(StackText, text); }
};

/// How far a group has come with its collectives ([0]) and its messages ([1]).
struct Progress {
  std::array<std::atomic<std::uint64_t>, 2> enqueued, started, completed;
  // How often each CountedCall but `none` was called, in the order of the enum.
  std::array<std::atomic<std::uint64_t>, kCountedCalls> counts;
  std::atomic<std::int64_t> meets_since_ns;  // 0 unless the process waits for the others to use a card first
};

struct GroupSlot {
  Progress progress;
  Versioned<FlightGroup> group;
};

using EntrySlot = Versioned<FlightEntry>;
/// A slot may be shorter than this. Then its text is, too.
using StackSlot = Versioned<StackText>;
inline constexpr std::size_t kWholeStack = 4096, kOneLine = 512;  // bytes of a slot
static_assert(sizeof(StackSlot) <= kWholeStack);
/// Returns how many characters a slot of so many bytes holds.
constexpr std::size_t room_for_text(std::size_t slot_bytes) {
  return std::min(slot_bytes - sizeof(std::uint64_t) - StackText::head(), sizeof(StackText::text));
}
static_assert(sizeof(EntrySlot) == 448, "an entry fills whole cache lines");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the memory");

/// The first four words have their place and meaning in every version of the layout. All words but the last
/// three are constant once the release store of `magic` has published them.
struct Header {
  std::atomic<std::uint64_t> magic, version, pid, birth;
  std::atomic<std::uint64_t> bytes;        // of the whole memory
  std::atomic<std::uint64_t> entries;      // the length of the ring
  std::atomic<std::uint64_t> stack_bytes;  // kWholeStack, kOneLine, or 0 if no stacks are recorded
  std::atomic<std::uint64_t> next;         // the number of the next entry
  std::atomic<std::uint64_t> unrecorded;   // operations of groups that the table had no room for
  std::atomic<std::uint64_t> next_detail;  // how many numbers of details there were so far
  alignas(64) Versioned<FlightProcess> process;
};

/// Says where the parts of a memory lie.
struct Layout {
  std::size_t entries, stack_bytes;

  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t up_to_page(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static constexpr std::size_t groups_at() { return up_to_page(sizeof(Header)); }
  static constexpr std::size_t entries_at() {
    return groups_at() + up_to_page(kMostGroups * sizeof(GroupSlot));
  }
  /// Returns how many slots there are: one for each entry, or for each line.
  constexpr std::size_t stacks() const {
    if (stack_bytes == 0) return 0;
    return stack_bytes == kOneLine ? FlightEntry::kMostLines : entries;
  }
  constexpr std::size_t stacks_at() const { return entries_at() + up_to_page(entries * sizeof(EntrySlot)); }
  constexpr std::size_t details_at() const { return stacks_at() + up_to_page(stacks() * stack_bytes); }
  constexpr std::size_t bytes() const {
    return details_at() + up_to_page(kDetails * sizeof(std::atomic<std::int64_t>));
  }
};

}  // namespace vccl::records
