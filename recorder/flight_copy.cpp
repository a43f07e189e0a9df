#include "recorder/flight_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <type_traits>
#include <vector>

#include "base/text.hpp"
#include "recorder/memory/layout.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostEntries = 256, kMostGroups = 48;

/// The first lines of a stack's text, as many as there is room for.
using StackHead = std::array<char, 256>;

/// Stands at the beginning of a copy. The process, the groups, the entries and their stacks follow, as
/// they are in memory.
struct CopyHeader {
  std::array<char, 8> magic = kMagic;
  std::uint64_t version = records::kLayoutVersion;
  std::uint64_t groups = 0, entries = 0, stacks = 0;
  std::uint64_t recorded = 0, unrecorded = 0;
  std::int64_t now_ns = 0;

  static constexpr std::array<char, 8> kMagic{'v', 'c', 'c', 'l', 'c', 'o', 'p', 'y'};
};

static_assert(sizeof(CopyHeader) + sizeof(FlightProcess) + kMostGroups * sizeof(FlightSnapshot::Group) +
                  kMostEntries * (sizeof(FlightEntry) + sizeof(StackHead)) <=
              kMostCopied);

template <class Content>
void append(std::string& bytes, const Content& content) {
  static_assert(std::is_trivially_copyable_v<Content>);
  bytes.append(reinterpret_cast<const char*>(&content), sizeof content);
}

/// Takes a Content from the beginning of the bytes, which are long enough.
template <class Content>
Content take(std::string_view& bytes) {
  static_assert(std::is_trivially_copyable_v<Content>);
  Content content;
  std::memcpy(&content, bytes.data(), sizeof content);
  bytes.remove_prefix(sizeof content);
  return content;
}

bool is_over(const FlightEntry& entry) {
  return entry.is(FlightEntry::kRetired) || entry.completed_ns != 0;
}

/// Returns the groups of which the copy tells: the newest ones.
std::vector<FlightSnapshot::Group> groups_to_copy(const FlightSnapshot& snapshot) {
  const auto count = std::min(snapshot.groups.size(), kMostGroups);
  return {snapshot.groups.end() - static_cast<std::ptrdiff_t>(count), snapshot.groups.end()};
}

std::vector<const FlightEntry*> entries_to_copy(const FlightSnapshot& snapshot,
                                                const std::vector<FlightSnapshot::Group>& groups) {
  std::set<std::uint64_t> serials;
  for (const auto& group : groups) serials.insert(group.group.serial);
  std::vector<const FlightEntry*> chosen;
  for (const bool over : {false, true}) {
    for (auto entry = snapshot.entries.rbegin(); entry != snapshot.entries.rend(); ++entry) {
      if (chosen.size() == kMostEntries) break;
      if (is_over(*entry) == over && serials.contains(entry->group_serial)) chosen.push_back(&*entry);
    }
  }
  std::ranges::sort(chosen, {}, [](const FlightEntry* entry) { return entry->number; });
  return chosen;
}

StackHead head_of(std::string_view stack) {
  StackHead head{};
  const auto end = stack.substr(0, head.size() - 1).rfind('\n');
  if (end != std::string_view::npos) std::ranges::copy(stack.substr(0, end + 1), head.begin());
  return head;
}

/// Moves a time, unless it is not known.
void move(std::int64_t& time_ns, std::int64_t by_ns) {
  if (time_ns > 0) __builtin_add_overflow(time_ns, by_ns, &time_ns);
  time_ns = std::max<std::int64_t>(time_ns, 0);
}

void move_times(FlightSnapshot& snapshot, std::int64_t by_ns) {
  // The time since 1970 stays what it was.
  __builtin_sub_overflow(snapshot.process.wall_minus_steady_ns, by_ns,
                         &snapshot.process.wall_minus_steady_ns);
  for (auto& [group, progress] : snapshot.groups) {
    move(group.opened_ns, by_ns);
    move(progress.meets_since_ns, by_ns);
  }
  for (FlightEntry& entry : snapshot.entries)
    for (auto* time : {&entry.created_ns, &entry.started_ns, &entry.completed_ns}) move(*time, by_ns);
}

/// Returns whether the groups and entries are as a reader of the memory would give them.
bool is_sound(const FlightSnapshot& snapshot) {
  const auto serial_of = [](const FlightSnapshot::Group& group) { return group.group.serial; };
  const auto is_usable = [&](const FlightEntry& entry) {
    const std::uint64_t serial = entry.group_serial;
    return entry.is_sound() && std::ranges::binary_search(snapshot.groups, serial, {}, serial_of);
  };
  return std::ranges::is_sorted(snapshot.groups, {}, serial_of) &&
         std::ranges::is_sorted(snapshot.entries, {}, &FlightEntry::number) &&
         std::ranges::all_of(snapshot.groups, [](const auto& group) { return group.group.is_sound(); }) &&
         std::ranges::all_of(snapshot.entries, is_usable);
}

}  // namespace

std::string encode_copy(const FlightSnapshot& snapshot, std::int64_t now_ns) {
  const auto groups = groups_to_copy(snapshot);
  const auto entries = entries_to_copy(snapshot, groups);
  CopyHeader header;
  header.groups = groups.size();
  header.entries = entries.size();
  header.stacks = snapshot.stacks.empty() ? 0 : entries.size();
  header.recorded = snapshot.recorded;
  header.unrecorded = snapshot.unrecorded;
  header.now_ns = now_ns;
  FlightProcess process = snapshot.process;
  process.answers = {};  // whoever is asked knows already how to ask
  std::string bytes;
  append(bytes, header);
  append(bytes, process);
  for (const auto& group : groups) append(bytes, group);
  for (const auto* entry : entries) append(bytes, *entry);
  for (std::size_t i = 0; i < header.stacks; ++i)
    append(bytes, head_of(snapshot.stacks[static_cast<std::size_t>(entries[i] - snapshot.entries.data())]));
  return bytes;
}

FlightSnapshot decode_copy(std::string_view bytes, std::int64_t now_ns) {
  if (bytes.size() < sizeof(CopyHeader) + sizeof(FlightProcess) || bytes.size() > kMostCopied)
    throw FlightRefused(base::text("its copy has ", bytes.size(), " bytes"));
  const auto size = bytes.size();
  const auto header = take<CopyHeader>(bytes);
  if (header.magic != CopyHeader::kMagic) throw FlightRefused("it is no copy of a flight recorder");
  if (header.version != records::kLayoutVersion) {
    throw FlightRefused(base::text("its copy has version ", header.version,
                                   ", and this version of vccl reads version ", records::kLayoutVersion));
  }
  FlightSnapshot snapshot;
  snapshot.process = take<FlightProcess>(bytes);
  const FlightRefused contradiction(base::text("its copy of ", size, " bytes contradicts itself"));
  if (header.groups > kMostGroups || header.entries > kMostEntries ||
      (header.stacks != 0 && header.stacks != header.entries) ||
      bytes.size() != header.groups * sizeof(FlightSnapshot::Group) + header.entries * sizeof(FlightEntry) +
                          header.stacks * sizeof(StackHead))
    throw contradiction;
  snapshot.recorded = header.recorded;
  snapshot.unrecorded = header.unrecorded;
  for (std::uint64_t i = 0; i < header.groups; ++i)
    snapshot.groups.push_back(take<FlightSnapshot::Group>(bytes));
  for (std::uint64_t i = 0; i < header.entries; ++i) snapshot.entries.push_back(take<FlightEntry>(bytes));
  for (std::uint64_t i = 0; i < header.stacks; ++i) {
    const auto head = take<StackHead>(bytes);
    snapshot.stacks.emplace_back(head.begin(), std::ranges::find(head, '\0'));
  }
  if (!is_sound(snapshot)) throw contradiction;
  std::int64_t by_ns = 0;
  if (!__builtin_sub_overflow(now_ns, header.now_ns, &by_ns)) move_times(snapshot, by_ns);
  return snapshot;
}

}  // namespace vccl
