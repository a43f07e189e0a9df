#include "recorder/flight_reader.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/text.hpp"
#include "recorder/memory/checked_layout.hpp"

namespace vccl {
namespace {

using records::EntrySlot;
using records::GroupSlot;
using records::Header;
using records::header_of;
using records::Layout;
using records::layout_of;
using records::StackSlot;

std::uint64_t relaxed(const std::atomic<std::uint64_t>& number) {
  return number.load(std::memory_order_relaxed);
}

FlightSnapshot::Progress progress_of(const records::Progress& progress) {
  FlightSnapshot::Progress result;
  for (std::size_t kind = 0; kind < 2; ++kind) {
    // In this order, so that a group that goes on meanwhile does not seem to have completed what it has not
    // called.
    result.completed[kind] = progress.completed[kind].load(std::memory_order_acquire);
    result.started[kind] = progress.started[kind].load(std::memory_order_acquire);
    result.enqueued[kind] = progress.enqueued[kind].load(std::memory_order_acquire);
  }
  std::ranges::transform(progress.counts, result.counts.begin(), relaxed);
  result.meets_since_ns = std::max(std::int64_t{0}, progress.meets_since_ns.load(std::memory_order_relaxed));
  return result;
}

/// Reads the text of an entry's stack. Returns an empty text if the slot has another entry's.
std::string stack_of(const StackSlot& slot, std::uint64_t number, std::size_t room) {
  using records::StackText;
  StackText stack;
  const auto length = [&](const StackText& its) { return std::min<std::size_t>(its.length, room); };
  const auto found = slot.read(stack, StackText::head(),
                               [&](const StackText& its) { return StackText::head() + length(its); });
  if (found != StackSlot::Found::content || stack.number != number) return {};
  return {stack.text.data(), length(stack)};
}

auto find_group(const std::vector<FlightSnapshot::Group>& groups, std::uint64_t serial) {
  const auto serial_of = [](const FlightSnapshot::Group& entry) { return entry.group.serial; };
  const auto found = std::ranges::lower_bound(groups, serial, {}, serial_of);
  return found != groups.end() && found->group.serial == serial ? found : groups.end();
}

}  // namespace

const FlightSnapshot::Group& FlightSnapshot::group_of(const FlightEntry& entry) const {
  return *find_group(groups, entry.group_serial);
}

FlightReader::FlightReader(std::span<const std::byte> memory) : memory_(memory) {
  layout_of(memory_);
}

FlightReader::~FlightReader() {
  if (mapped_) ::munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

std::unique_ptr<FlightReader> FlightReader::map(int file) {
  try {
    base::check_sealed_memory(file);  // so its owner cannot make a read fault
  } catch (const base::FileRefused& refused) {
    throw FlightRefused(refused.what());
  }
  const auto bytes = base::identify_file(file).bytes;
  constexpr std::uint64_t kMost = Layout{records::kMostEntries, records::kWholeStack}.bytes();
  if (bytes < sizeof(Header) || bytes > kMost)
    throw FlightRefused(base::text("its length of ", bytes, " bytes is not a flight recorder's"));
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) throw base::SystemError("mmap of a flight recorder", errno);
  const std::span memory(static_cast<const std::byte*>(mapped), static_cast<std::size_t>(bytes));
  try {
    auto reader = std::make_unique<FlightReader>(memory);
    reader->mapped_ = true;
    return reader;
  } catch (...) {
    ::munmap(mapped, bytes);
    throw;
  }
}

FlightProcess FlightReader::read_process() const {
  layout_of(memory_);
  FlightProcess process;
  header_of(memory_).process.read(process);
  return process;
}

FlightSnapshot FlightReader::read() const {
  const Layout layout = layout_of(memory_);
  const Header& header = header_of(memory_);
  FlightSnapshot result;
  if (header.process.read(result.process) == decltype(header.process)::Found::torn) ++result.torn;
  // Entries come before their groups, so that the group of each entry is found. A group that is opened
  // afterwards has no entry here.
  const auto* entries = reinterpret_cast<const EntrySlot*>(memory_.data() + Layout::entries_at());
  result.recorded = header.next.load(std::memory_order_acquire);
  result.unrecorded = relaxed(header.unrecorded);
  for (std::size_t place = 0; place < layout.entries; ++place) {
    FlightEntry entry;
    const auto found = entries[place].read(entry);
    if (found == EntrySlot::Found::nothing) continue;
    if (found == EntrySlot::Found::torn) {
      ++result.torn;
    } else if (entry.number % layout.entries != place || entry.group >= records::kMostGroups ||
               !entry.is_sound()) {
      ++result.damaged;
    } else {
      result.entries.push_back(entry);
    }
  }
  const auto* groups = reinterpret_cast<const GroupSlot*>(memory_.data() + Layout::groups_at());
  for (std::size_t place = 0; place < records::kMostGroups; ++place) {
    FlightSnapshot::Group group;
    const auto found = groups[place].group.read(group.group);
    if (found == decltype(groups[place].group)::Found::nothing) continue;
    if (found == decltype(groups[place].group)::Found::torn || !group.group.is_sound()) {
      ++(found == decltype(groups[place].group)::Found::torn ? result.torn : result.damaged);
      continue;
    }
    group.progress = progress_of(groups[place].progress);
    result.groups.push_back(group);
  }
  const auto serial_of = [](const FlightSnapshot::Group& entry) { return entry.group.serial; };
  std::ranges::sort(result.groups, {}, serial_of);
  std::ranges::sort(result.entries, {}, &FlightEntry::number);
  // An entry's group may have made room for another one since.
  result.damaged += std::erase_if(result.entries, [&](const FlightEntry& entry) {
    return find_group(result.groups, entry.group_serial) == result.groups.end();
  });
  if (layout.stack_bytes == 0) return result;
  const auto room = records::room_for_text(layout.stack_bytes);
  const bool lines = layout.stack_bytes == records::kOneLine;
  for (const auto& entry : result.entries) {
    const auto number = lines ? entry.line : entry.number;
    result.stacks.push_back(stack_of(stack_slot(memory_, layout, number % layout.stacks()), number, room));
  }
  return result;
}

}  // namespace vccl
