#include "recorder/flight_recorder.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iterator>

#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/process.hpp"
#include "base/sealed_memory.hpp"
#include "recorder/memory/layout.hpp"

namespace vccl {
namespace {

using records::EntrySlot;
using records::GroupSlot;
using records::Header;
using records::Layout;
using records::StackSlot;

Header& header_of(std::byte* memory) {
  return *reinterpret_cast<Header*>(memory);
}

GroupSlot& group_of(std::byte* memory, std::uint32_t place) {
  return reinterpret_cast<GroupSlot*>(memory + Layout::groups_at())[place];
}

EntrySlot& entry_of(std::byte* memory, std::size_t place) {
  return reinterpret_cast<EntrySlot*>(memory + Layout::entries_at())[place];
}

std::atomic<std::int64_t>* details_of(std::byte* memory, const Layout& layout) {
  return reinterpret_cast<std::atomic<std::int64_t>*>(memory + layout.details_at());
}

void write_stack(std::byte* memory, const Layout& layout, std::uint64_t number, std::string_view stack) {
  auto* slot = memory + layout.stacks_at() + number % layout.stacks() * layout.stack_bytes;
  records::StackText text;  // 4 KiB, most of which stay as they are
  text.number = number;
  text.length = std::min(stack.size(), records::room_for_text(layout.stack_bytes));
  put_text(std::span(text.text).first(text.length), stack);
  reinterpret_cast<StackSlot*>(slot)->write(text, records::StackText::head() + text.length);
}

Layout layout_for(const FlightRecorder::Settings& settings) {
  std::size_t stack_bytes = 0;
  if (settings.stacks == FlightRecorder::Stacks::lines) stack_bytes = records::kOneLine;
  if (settings.stacks == FlightRecorder::Stacks::whole) stack_bytes = records::kWholeStack;
  return {settings.entries, stack_bytes};
}

/// Raises a number in shared memory, which several threads may do at a time. Relaxed: nothing else is read by
/// it.
void raise_to(std::atomic<std::uint64_t>& number, std::uint64_t value) {
  auto found = number.load(std::memory_order_relaxed);
  while (found < value && !number.compare_exchange_weak(found, value, std::memory_order_relaxed)) {
  }
}

/// Returns whether the place in the table has this group, and not a later one.
bool has(const GroupSlot& slot, const RecordedGroup& group) {
  return slot.group.get<std::uint64_t>(offsetof(FlightGroup, serial)) == group.serial;
}

/// Notes how far a group has come.
void advance(GroupSlot& slot, const RecordedOperation& operation,
             std::array<std::atomic<std::uint64_t>, 2> records::Progress::* which) {
  if (!has(slot, operation.group)) return;
  raise_to((slot.progress.*which)[operation.message], operation.sequence);
}

/// Counts the collectives that are called. Relaxed: nothing else is read by the numbers.
void count(GroupSlot& slot, const RecordedGroup& group, std::span<const FlightEntry> entries) {
  if (!has(slot, group)) return;
  for (const FlightEntry& entry : entries) {
    if (entry.counted == CountedCall::none) continue;
    slot.progress.counts[static_cast<std::size_t>(entry.counted) - 1].fetch_add(1, std::memory_order_relaxed);
  }
}

/// The calling thread. Its name is a system call away, so it is asked for once: a name that a thread gets
/// after its first operation is not seen.
struct CallingThread {
  int generation = base::fork_generation();  // a forked child's thread has another number
  std::uint64_t handle = pthread_self();
  std::int32_t number = ::gettid();
  std::array<char, 16> name{};

  CallingThread() {
    if (pthread_getname_np(pthread_self(), name.data(), name.size()) != 0) name = {};
  }
  static const CallingThread& get() {
    static thread_local CallingThread thread;
    if (thread.generation != base::fork_generation()) thread = {};
    return thread;
  }
};

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), {}};
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::ranges::replace(line, '\0', ' ');
  return line;
}

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Returns how much of an entry has to be written: the sizes that it does not list stay as they were.
std::size_t bytes_of(const FlightEntry& entry) {
  return offsetof(FlightEntry, sizes) + entry.listed_sizes * sizeof entry.sizes[0];
}

}  // namespace

FlightRecorder::FlightRecorder(Settings settings) : settings_(settings) {
  if (settings_.entries == 0) return;
  const Layout layout = layout_for(settings_);
  file_ = base::make_sealed_memory(records::kMemoryName, layout.bytes());
  void* mapped = ::mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) throw base::SystemError("mmap of the flight recorder", errno);
  memory_ = static_cast<std::byte*>(mapped);
  bytes_ = layout.bytes();
  // The first turn of the ring should cost no more than later ones, so its pages are made now.
  constexpr std::size_t kMostMadeNow = 4 << 20;
  const std::size_t now = std::min(layout.stacks_at() - Layout::entries_at(), kMostMadeNow);
  for (std::size_t at = 0; at < now; at += Layout::kPage)
    reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + Layout::entries_at() + at)
        ->store(0, std::memory_order_relaxed);

  Header& header = header_of(memory_);
  header.version.store(records::kLayoutVersion, std::memory_order_relaxed);
  header.pid.store(static_cast<std::uint64_t>(::getpid()), std::memory_order_relaxed);
  header.birth.store(base::birth_of(::getpid()), std::memory_order_relaxed);
  header.bytes.store(layout.bytes(), std::memory_order_relaxed);
  header.entries.store(layout.entries, std::memory_order_relaxed);
  header.stack_bytes.store(layout.stack_bytes, std::memory_order_relaxed);
  set_process({});
  // The release store publishes everything above: a reader loads the magic number with acquire first.
  header.magic.store(records::kMagic, std::memory_order_release);
}

FlightRecorder::~FlightRecorder() {
  if (memory_) ::munmap(memory_, bytes_);
}

void FlightRecorder::set_process(FlightProcess process) {
  if (!enabled()) return;
  process.pid = ::getpid();
  process.birth = base::birth_of(::getpid());
  process.wall_minus_steady_ns = wall_ns() - base::monotonic_ns();
  if (process.host.front() == '\0') ::gethostname(process.host.data(), process.host.size() - 1);
  put_text(process.program, command_line());
  std::lock_guard lock(mutex_);
  process.answers = process_.answers;
  process.faults = process_.faults;
  process.last_fault = process_.last_fault;
  process_ = process;
  header_of(memory_).process.write(process);
}

void FlightRecorder::note_answers(std::string_view answers) noexcept {
  if (!enabled()) return;
  std::lock_guard lock(mutex_);
  put_text(process_.answers, answers);
  header_of(memory_).process.write(process_);
}

void FlightRecorder::note_fault(std::string_view fault) noexcept {
  if (!enabled()) return;
  std::lock_guard lock(mutex_);
  ++process_.faults;
  put_text(process_.last_fault, fault);
  header_of(memory_).process.write(process_);
}

FlightProcess FlightRecorder::process() const {
  std::lock_guard lock(mutex_);
  return process_;
}

RecordedGroup FlightRecorder::open_group(FlightGroup group) {
  if (!enabled()) return {};
  std::lock_guard lock(mutex_);
  for (std::uint32_t looks = 0; looks < records::kMostGroups; ++looks) {
    const auto place = next_place_++ % static_cast<std::uint32_t>(records::kMostGroups);
    auto& slot = group_of(memory_, place);
    FlightGroup before;
    // Only this function and close_group() write groups, under the lock, so nothing is torn.
    if (slot.group.read(before) == decltype(slot.group)::Found::content && before.open != 0) continue;
    group.serial = ++groups_;
    group.open = 1;
    group.opened_ns = base::monotonic_ns();
    for (auto* numbers : {&slot.progress.enqueued, &slot.progress.started, &slot.progress.completed})
      for (auto& number : *numbers) number.store(0, std::memory_order_relaxed);
    for (auto& number : slot.progress.counts) number.store(0, std::memory_order_relaxed);
    slot.progress.meets_since_ns.store(0, std::memory_order_relaxed);
    slot.group.write(group);
    return {place, groups_};
  }
  return {};
}

// Relaxed: the number says all by itself.
void FlightRecorder::meets(const RecordedGroup& group, std::int64_t since_ns) noexcept {
  if (!group || !enabled()) return;
  auto& slot = group_of(memory_, group.place);
  if (has(slot, group)) slot.progress.meets_since_ns.store(since_ns, std::memory_order_relaxed);
}

void FlightRecorder::close_group(const RecordedGroup& group) noexcept {
  if (!group || !enabled()) return;
  std::lock_guard lock(mutex_);
  auto& slot = group_of(memory_, group.place);
  FlightGroup content;
  slot.group.read(content);
  if (content.serial != group.serial) return;
  content.open = 0;
  slot.group.write(content);
}

// The numbers are taken before they are written, so a reader that finds a number of later details finds them
// taken, too: the release stores pair with its acquire loads.
void FlightRecorder::add_details(FlightEntry& entry, const FlightDetails& details) noexcept {
  if (!enabled()) return;
  const auto row = details.encoded();
  if (row.size() > records::kDetails) return;
  auto* ring = details_of(memory_, layout_for(settings_));
  const auto first = header_of(memory_).next_detail.fetch_add(row.size(), std::memory_order_acq_rel);
  for (std::size_t i = 0; i < row.size(); ++i)
    ring[(first + i) % records::kDetails].store(row[i], std::memory_order_release);
  entry.details_at = first;
  entry.details = static_cast<std::uint32_t>(row.size());
}

// Relaxed: the number says all by itself, and the texts in the memory have an order of their own.
FlightRecorder::Line FlightRecorder::line_of(const void* line) noexcept {
  constexpr std::size_t kMostLooks = 64;
  if (settings_.stacks != Stacks::lines || !enabled()) return {};
  const auto first = base::mix_bits(reinterpret_cast<std::uintptr_t>(line)) % FlightEntry::kMostLines;
  for (std::size_t look = 0; look < kMostLooks; ++look) {
    const auto place = (first + look) % FlightEntry::kMostLines;
    const void* known = lines_[place].load(std::memory_order_relaxed);
    const auto number = static_cast<std::uint16_t>(place + 1);
    if (known == nullptr && lines_[place].compare_exchange_strong(known, line, std::memory_order_relaxed))
      return {number, true};
    if (known == line) return {number, false};
  }
  return {};
}

void FlightRecorder::write_line(std::uint16_t number, std::string_view text) noexcept {
  if (settings_.stacks == Stacks::lines && enabled())
    write_stack(memory_, layout_for(settings_), number, text);
}

RecordedOperation FlightRecorder::begin(const RecordedGroup& group, std::span<FlightEntry> entries,
                                        std::string_view stack) noexcept {
  if (!enabled() || entries.empty()) return {};
  Header& header = header_of(memory_);
  if (!group) {
    header.unrecorded.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  const auto& thread = CallingThread::get();
  const auto& last = entries.back();
  RecordedOperation operation{group};
  operation.count = static_cast<std::uint32_t>(entries.size());
  operation.message = last.is(FlightEntry::kMessage);
  operation.sequence = operation.message ? last.message_sequence : last.collective_sequence;
  operation.first = header.next.fetch_add(entries.size(), std::memory_order_relaxed);
  // A batch that is longer than the ring leaves its last entries.
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& entry = entries[i];
    entry.number = operation.first + i;
    entry.group = group.place;
    entry.group_serial = group.serial;
    entry.thread = thread.handle;
    entry.thread_number = thread.number;
    entry.thread_name = thread.name;
    const auto place = entry.number % settings_.entries;
    auto& slot = entry_of(memory_, place);
    const auto before = slot.begin_change();
    // Other threads may have gone round the ring since this one took its number.
    if (before != 0 && slot.get<std::uint64_t>(offsetof(FlightEntry, number)) > entry.number) {
      slot.cancel_change(before);
      continue;
    }
    slot.store(entry, bytes_of(entry));
    slot.end_change(before);
    if (settings_.stacks == Stacks::whole && !stack.empty())
      write_stack(memory_, layout_for(settings_), entry.number, stack);
  }
  auto& slot = group_of(memory_, group.place);
  advance(slot, operation, &records::Progress::enqueued);
  count(slot, group, entries);
  return operation;
}

/// Changes the operation's entries that the ring still has.
template <class Change>
void FlightRecorder::change(const RecordedOperation& operation, const Change& change) noexcept {
  for (std::uint32_t i = 0; i < operation.count; ++i) {
    const auto number = operation.first + i;
    auto& slot = entry_of(memory_, number % settings_.entries);
    const auto before = slot.begin_change();
    if (slot.get<std::uint64_t>(offsetof(FlightEntry, number)) != number) {
      slot.cancel_change(before);
      continue;
    }
    change(slot);
    slot.end_change(before);
  }
}

void FlightRecorder::started(const RecordedOperation& operation, std::int64_t now_ns) noexcept {
  if (operation.count == 0 || !enabled()) return;
  change(operation, [&](EntrySlot& slot) { slot.put(offsetof(FlightEntry, started_ns), now_ns); });
  advance(group_of(memory_, operation.group.place), operation, &records::Progress::started);
}

void FlightRecorder::hashed(std::uint64_t number, std::uint64_t input, std::uint64_t output) noexcept {
  if (!enabled()) return;
  change({.group = {}, .first = number, .count = 1}, [&](EntrySlot& slot) {
    slot.put(offsetof(FlightEntry, input_hash), input);
    slot.put(offsetof(FlightEntry, output_hash), output);
    const auto flags = slot.get<std::uint16_t>(offsetof(FlightEntry, flags));
    slot.put(offsetof(FlightEntry, flags), static_cast<std::uint16_t>(flags | FlightEntry::kHashed));
  });
}

void FlightRecorder::ended(const RecordedOperation& operation, bool succeeded, std::int64_t now_ns,
                           int source) noexcept {
  if (operation.count == 0 || !enabled()) return;
  change(operation, [&](EntrySlot& slot) {
    if (succeeded) slot.put(offsetof(FlightEntry, completed_ns), now_ns);
    const auto flags = slot.get<std::uint16_t>(offsetof(FlightEntry, flags));
    slot.put(offsetof(FlightEntry, flags), static_cast<std::uint16_t>(flags | FlightEntry::kRetired));
    // A send has its peer already, and of several receives nobody knows which one the source is of.
    const bool receive = operation.count == 1 && (flags & FlightEntry::kSends) == 0;
    if (receive && source >= 0) slot.put(offsetof(FlightEntry, peer), static_cast<std::int32_t>(source));
  });
  if (succeeded) advance(group_of(memory_, operation.group.place), operation, &records::Progress::completed);
}

}  // namespace vccl
