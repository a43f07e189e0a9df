// Reads flight recorders: this process's own, and those of other processes of the user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "base/peer_file.hpp"
#include "recorder/flight_details.hpp"
#include "recorder/flight_entry.hpp"

namespace vccl {

/// Says why a memory is not read as a flight recorder, as the rest of a sentence that begins "because".
struct FlightRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Is what a reader has found in a recorder. Whatever the memory said, all counts, places and texts in it may
/// be used as they are.
struct FlightSnapshot {
  /// The last collective ([0]) and the last message ([1]) of a group that was called, has started and has
  /// completed.
  struct Progress {
    std::array<std::uint64_t, 2> enqueued{}, started{}, completed{};
    std::array<std::uint64_t, kCountedCalls> counts{};  // how often each CountedCall but `none` was called
    std::int64_t meets_since_ns = 0;  // since when it waits for the group's first use of a card, or 0
  };
  struct Group {
    FlightGroup group;
    Progress progress;
  };

  FlightProcess process;
  std::vector<Group> groups;         // by their serial numbers
  std::vector<FlightEntry> entries;  // by their numbers; each one's group is in `groups`
  std::vector<std::string> stacks;   // of the entries; empty if no stacks are recorded
  std::uint64_t recorded = 0;        // how many entries the process has made, most of which the ring lost
  std::uint64_t unrecorded = 0;      // operations of groups that the table had no room for
  std::uint64_t torn = 0;            // entries that were changing, or whose process died in a change
  std::uint64_t damaged = 0;         // entries and groups that contradict themselves or the rest

  /// Returns the group of an entry of this snapshot.
  const Group& group_of(const FlightEntry& entry) const;
};

/// Is what has come into a recorder since an earlier look.
struct FlightNews {
  std::vector<FlightEntry> entries;  // by their numbers, without a gap but those that are counted
  std::uint64_t next = 0;            // where the next look has to begin
  std::uint64_t lost = 0;            // entries that the ring has lost before they were read
};

/// Reads one recorder, whose process may run, be stopped or be gone. It takes no lock and writes nothing, so
/// the process does not notice. Every call ends, whatever happens to the memory meanwhile.
class FlightReader {
 public:
  /// Reads memory that stays mapped for as long as this object lives. Throws FlightRefused unless it has the
  /// form of a recorder.
  explicit FlightReader(std::span<const std::byte> memory);
  /// Maps the file for reading. Throws FlightRefused, or base::SystemError.
  static std::unique_ptr<FlightReader> map(int file);
  ~FlightReader();
  FlightReader(const FlightReader&) = delete;
  FlightReader& operator=(const FlightReader&) = delete;

  FlightSnapshot read() const;
  /// Returns only what the recorder says of its process.
  FlightProcess read_process() const;

  // What a reader uses that comes back often, and reads each entry once.

  /// Returns the number of the next entry that the process will make.
  std::uint64_t next_number() const;
  /// Returns how many entries the ring keeps.
  std::uint64_t length() const;
  /// Returns how many operations were not recorded, because the table of groups had no room.
  std::uint64_t unrecorded() const;
  /// Returns the entries from number `first` on. Stops before one that its thread is still writing, unless
  /// `last_look` is true: then such an entry counts as lost.
  FlightNews read_from(std::uint64_t first, bool last_look) const;
  /// Returns the entry of that number. Returns nothing if the ring has lost it, or it is being written.
  std::optional<FlightEntry> find(std::uint64_t number) const;
  /// Returns the groups whose serial numbers are larger than `serial`, by their numbers, and all that have
  /// been closed.
  std::vector<FlightGroup> read_groups(std::uint64_t serial) const;
  /// Returns the details of an entry. Returns nothing if their ring has lost them.
  std::optional<FlightDetails> read_details(const FlightEntry& entry) const;

 private:
  std::span<const std::byte> memory_;
  bool mapped_ = false;
};

/// A recorder of a process of this user.
struct FoundRecorder {
  std::int32_t holder = 0;  // a process that has the memory open; not the writer itself if that is gone
  std::int32_t pid = 0;     // the writer, as its memory names it; 0 if nothing is known
  bool alive = false;       // whether the writer still runs
  base::FileIdentity file;
  std::uint64_t version = 0;  // of the memory's layout
  std::string problem;        // why it cannot be read; empty if `reader` is there
  // Of the file. Whoever keeps it open keeps the memory, and others find it there.
  base::FileDescriptor descriptor;
  std::unique_ptr<FlightReader> reader;
};

/// Returns the recorders that processes of this user have open, each once. They are found by the names of
/// open files in /proc, so nothing has to be registered and nothing is left when a process dies. Processes of
/// other users are not looked at.
std::vector<FoundRecorder> find_flight_recorders();

}  // namespace vccl
