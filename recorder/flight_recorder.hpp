// The flight recorder: what this process's groups did last, in memory that other processes can read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/fork.hpp"
#include "recorder/flight_details.hpp"
#include "recorder/flight_entry.hpp"

namespace vccl {

/// A group's place in the recorder's table. An empty one stands for a group that is not recorded.
struct RecordedGroup {
  std::uint32_t place = 0, serial = 0;
  explicit operator bool() const noexcept { return serial != 0; }
};

/// The entries of one operation: one for each call, if several were coalesced, and one for all of them.
struct RecordedOperation {
  RecordedGroup group;
  std::uint64_t first = 0;  // the number of the first entry
  std::uint32_t count = 0;  // 0 if nothing was recorded
  bool message = false;
  std::uint64_t sequence = 0;
};

/// Writes the entries of one process. The memory is a memfd with a known name, which lives for as long as a
/// process has it open or mapped. A reader finds it in /proc without the help of this process (FlightReader).
///
/// Each function costs some stores and no system call, and never waits for a reader. Thread-safe. In a forked
/// child of the process that made the object, no function does anything: the memory is the parent's.
class FlightRecorder {
 public:
  /// How much room there is for the stack of each call.
  enum class Stacks : std::uint8_t { none, lines, whole };  // lines: for one frame each
  struct Settings {
    std::size_t entries = 2000;  // 0: nothing is recorded
    Stacks stacks = Stacks::none;
  };

  /// Returns the recorder of this process. Its first call reads the variables, and throws Error(invalid) for
  /// a value that is not allowed.
  static FlightRecorder& of_this_process();

  /// Throws base::SystemError if the system gives no memory.
  explicit FlightRecorder(Settings settings);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  bool enabled() const noexcept { return memory_ != nullptr && !made_.inherited(); }
  bool has_stacks() const noexcept { return settings_.stacks == Stacks::whole && enabled(); }
  bool has_lines() const noexcept { return settings_.stacks == Stacks::lines && enabled(); }
  /// Returns the whole memory, for a reader in this process. It is empty if nothing is recorded.
  std::span<const std::byte> memory() const noexcept { return {memory_, memory_ ? bytes_ : 0}; }

  /// Sets what readers learn of the process. The fields pid, birth, program and the difference of the clocks
  /// are filled in, and so is the host if it is empty. What note_fault() and note_answers() were told stays.
  void set_process(FlightProcess process);
  /// Notes where this process answers questions (FlightProcess::answers).
  void note_answers(std::string_view answers) noexcept;
  /// Notes that a fault of a plan has struck this process.
  void note_fault(std::string_view fault) noexcept;
  /// Returns what set_process() was given last.
  FlightProcess process() const;

  /// Puts a group into the table; its serial number and the time are filled in. Returns an empty place if the
  /// table is full of groups that are still open.
  RecordedGroup open_group(FlightGroup group);
  /// Marks the group as destroyed. The entry of the table is reused once no other is free.
  void close_group(const RecordedGroup& group) noexcept;

  /// Notes since when the process waits for the others in the first use of a card by the group. 0 says that
  /// it waits no longer.
  void meets(const RecordedGroup& group, std::int64_t since_ns) noexcept;

  /// Says whether somebody reads the details of entries, and hashes. Entries have none otherwise.
  void want_details(bool details, bool hashes) noexcept {
    details_wanted_.store(details, std::memory_order_relaxed);
    hashes_wanted_.store(hashes, std::memory_order_relaxed);
  }
  bool wants_details() const noexcept { return details_wanted_.load(std::memory_order_relaxed); }
  bool wants_hashes() const noexcept { return hashes_wanted_.load(std::memory_order_relaxed); }
  /// Writes details, and notes in the entry where they are. An entry whose details are longer than their ring
  /// has none.
  void add_details(FlightEntry& entry, const FlightDetails& details) noexcept;

  struct Line {
    std::uint16_t number = 0;  // for FlightEntry::line; 0 if there is no room for its text
    bool is_new = false;       // then the caller gives its text to write_line()
  };
  /// Returns the number of a line of the program, which `line` is the address of. Needs Stacks::lines.
  Line line_of(const void* line) noexcept;
  /// Writes the text of a line, in the form of a frame of a stack (records::StackText).
  void write_line(std::uint16_t number, std::string_view text) noexcept;

  /// Records an operation that this rank has called and that is to run later. Each entry needs no number, no
  /// group and no thread. `stack` is the text of the call's stack (records::StackText), which all entries
  /// get. Needs Stacks::whole.
  RecordedOperation begin(const RecordedGroup& group, std::span<FlightEntry> entries,
                          std::string_view stack = {}) noexcept;
  /// Notes that the operation has started to run.
  void started(const RecordedOperation& operation, std::int64_t now_ns) noexcept;
  /// Notes hashes of the elements that a call has read and written.
  void hashed(std::uint64_t number, std::uint64_t input, std::uint64_t output) noexcept;
  /// Notes that the operation is over. `source` is the rank from which a message came, or -1.
  void ended(const RecordedOperation& operation, bool succeeded, std::int64_t now_ns,
             int source = -1) noexcept;

 private:
  template <class Change>
  void change(const RecordedOperation& operation, const Change& change) noexcept;

  const base::ProcessMark made_;
  const Settings settings_;
  base::FileDescriptor file_;
  std::array<std::atomic<const void*>, FlightEntry::kMostLines> lines_{};  // by FlightEntry::line - 1
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  mutable std::mutex mutex_;  // guards the members below, and changes of the groups and of the process
  FlightProcess process_;
  std::uint32_t groups_ = 0;      // the number of groups so far
  std::uint32_t next_place_ = 0;  // where to look for a free place in the table
  // Relaxed: they only say what is worth writing.
  std::atomic<bool> details_wanted_{false}, hashes_wanted_{false};
};

}  // namespace vccl
