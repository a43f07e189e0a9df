// What a group writes into the flight recorder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc_pg/operations/request.hpp"
#include "recorder/flight_entry.hpp"
#include "recorder/flight_recorder.hpp"

namespace vccl {

/// Returns entries that describe the calls, and behind them one for the batch if they are one. Their numbers
/// and times are to be filled in.
std::vector<FlightEntry> entries_of(std::span<const Request> requests, bool batch);

/// Is a group in the recorder of this process. Graphs share it, because their replays may come after the
/// group's end. Thread-safe.
class Recording {
 public:
  explicit Recording(const FlightGroup& group);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  FlightRecorder& recorder() const { return recorder_; }
  /// Records a call, or the calls of a batch. `sequence` counts the group's operations of this kind, and
  /// `other` those of the other kind: collectives and messages.
  RecordedOperation begin(std::span<const Request> requests, bool batch, bool message, std::uint64_t sequence,
                          std::uint64_t other, std::int64_t now_ns);
  /// Records a replay of the collective that `entries` describe.
  RecordedOperation begin_replay(std::vector<FlightEntry> entries, std::int64_t now_ns);
  /// Shows others, for as long as the result lives, that this rank waits for the group's first use of a card.
  std::shared_ptr<void> meeting();
  /// Marks the group as destroyed.
  void close() noexcept;

 private:
  std::string stack_now() const;

  FlightRecorder& recorder_;
  const RecordedGroup group_;
  std::atomic<std::uint64_t> operations_{0};
  // Ranks replay the collectives of a group in the same order, but not at the same places among the calls. So
  // replays have numbers of their own, behind all that calls can reach.
  std::atomic<std::uint64_t> replays_{std::uint64_t{1} << 32};
};

}  // namespace vccl
