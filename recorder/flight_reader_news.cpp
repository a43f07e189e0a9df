// What a reader uses that reads each entry once, and comes back for the next ones.
#include <algorithm>

#include "recorder/flight_reader.hpp"
#include "recorder/memory/checked_layout.hpp"

namespace vccl {
namespace {

using records::EntrySlot;
using records::GroupSlot;
using records::header_of;
using records::Layout;
using records::layout_of;

const EntrySlot& slot_of(std::span<const std::byte> memory, const Layout& layout, std::uint64_t number) {
  return reinterpret_cast<const EntrySlot*>(memory.data() + Layout::entries_at())[number % layout.entries];
}

enum class Found { entry, later, not_yet };

/// Reads the entry of that number. `later` says that the ring has lost it, or that it is damaged.
Found read_entry(std::span<const std::byte> memory, const Layout& layout, std::uint64_t number,
                 FlightEntry& entry) {
  if (slot_of(memory, layout, number).read(entry) != EntrySlot::Found::content) return Found::not_yet;
  if (entry.number < number) return Found::not_yet;
  const bool sound = entry.number == number && entry.group < records::kMostGroups && entry.is_sound();
  return sound ? Found::entry : Found::later;
}

}  // namespace

std::uint64_t FlightReader::next_number() const {
  return header_of(memory_).next.load(std::memory_order_acquire);
}

std::uint64_t FlightReader::length() const {
  return layout_of(memory_).entries;
}

std::uint64_t FlightReader::unrecorded() const {
  return header_of(memory_).unrecorded.load(std::memory_order_relaxed);
}

FlightNews FlightReader::read_from(std::uint64_t first, bool last_look) const {
  const Layout layout = layout_of(memory_);
  const auto next = next_number();
  FlightNews news;
  news.next = first;
  if (next > layout.entries && first < next - layout.entries) {
    news.lost = next - layout.entries - first;
    news.next = next - layout.entries;
  }
  for (; news.next < next; ++news.next) {
    FlightEntry entry;
    const auto found = read_entry(memory_, layout, news.next, entry);
    if (found == Found::entry) {
      news.entries.push_back(entry);
    } else if (found == Found::not_yet && !last_look) {
      break;
    } else {
      ++news.lost;
    }
  }
  return news;
}

std::optional<FlightEntry> FlightReader::find(std::uint64_t number) const {
  FlightEntry entry;
  if (read_entry(memory_, layout_of(memory_), number, entry) != Found::entry) return std::nullopt;
  return entry;
}

std::vector<FlightGroup> FlightReader::read_groups(std::uint64_t serial) const {
  layout_of(memory_);
  const auto* groups = reinterpret_cast<const GroupSlot*>(memory_.data() + Layout::groups_at());
  std::vector<FlightGroup> result;
  for (std::size_t place = 0; place < records::kMostGroups; ++place) {
    FlightGroup group;
    const auto found = groups[place].group.read(group);
    // Places are taken in order, so those behind were never used, and their memory is not there.
    if (found == decltype(groups[place].group)::Found::nothing) break;
    if (found != decltype(groups[place].group)::Found::content) continue;
    if (group.is_sound() && (group.serial > serial || group.open == 0)) result.push_back(group);
  }
  std::ranges::sort(result, {}, &FlightGroup::serial);
  return result;
}

std::optional<FlightDetails> FlightReader::read_details(const FlightEntry& entry) const {
  const Layout layout = layout_of(memory_);
  if (entry.details == 0 || entry.details > records::kDetails) return std::nullopt;
  const auto* ring = reinterpret_cast<const std::atomic<std::int64_t>*>(memory_.data() + layout.details_at());
  std::vector<std::int64_t> row(entry.details);
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = ring[(entry.details_at + i) % records::kDetails].load(std::memory_order_acquire);
  // Whoever has overwritten one of them has taken its number before.
  const auto taken = header_of(memory_).next_detail.load(std::memory_order_acquire);
  if (taken - entry.details_at > records::kDetails) return std::nullopt;
  return FlightDetails::decoded(row);
}

}  // namespace vccl
