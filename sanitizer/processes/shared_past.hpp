// The past of memory that several processes use, and the order between their accesses.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sanitizer/processes/records.hpp"

namespace sanitizer {

/// Two accesses of two processes, to a common byte, between which there is no order.
struct SharedRace {
  SharedAccess first, second;  // in the order in which the journal has them; the second is this process's
};

/// Compares the accesses of one process with those of others. Not thread-safe.
///
/// An access is forgotten when a later one of its lane has touched the same bytes, unless the older one
/// writes and the later one reads, as in Block.
///
/// The verdict does not depend on who runs first. An access may come behind a meeting in which another
/// process has not said yet what it did before. The pair is then kept until that is known.
class SharedPast {
 public:
  /// More accesses than these of an allocation are not kept: the oldest one goes, and a race with it is
  /// missed.
  static constexpr std::size_t kMostAccesses = 1024;
  /// More undecided pairs than these are not kept.
  static constexpr std::size_t kMostPairs = 4096;
  /// What a process has published for a meeting before its last ones is forgotten. Accesses that lie behind
  /// what is forgotten are not reported.
  static constexpr std::size_t kMostPoints = 1024;

  explicit SharedPast(ProcessNumber own) : own_(own) {}

  /// Takes a record of any process, in the order of the journal. Compares an access of this process with the
  /// earlier ones of the others.
  void take(JournalRecord record);
  /// Returns the races that are known since the last call.
  std::vector<SharedRace> races();

  /// Returns what all processes have published for a meeting, as if a point waited for all of it.
  SharedClock published(LaneNumber meeting) const;

 private:
  enum class Order { yes, no, unknown };
  struct Known {
    ProcessNumber process;
    SharedAccess access;
  };
  struct Points {
    std::map<Time, SharedClock> by_number;
    bool has_forgotten = false;
  };
  /// What comes before a point, once what meetings stand for is followed.
  struct Before {
    std::unordered_map<LaneNumber, Time> times;
    std::unordered_map<LaneNumber, ClockEntry> meetings;
  };

  Before before(const SharedClock& clock) const;
  /// Returns whether everything is known that `process` did before the meetings.
  bool is_complete(const Before& before, ProcessNumber process) const;
  Order order(const Known& first, const Known& second, const Before& before_second) const;
  bool is_replaced(const Known& earlier, const std::deque<Known>& past) const;
  /// Returns whether all members have come to the meetings that are in `more` and not in `less`.
  bool have_all_come_to_more(const SharedClock& less, const SharedClock& more) const;
  void judge(const Known& first, const Known& second, const Before& before_second);

  const ProcessNumber own_;
  std::unordered_map<std::uint64_t, std::deque<Known>> accesses_;  // by block
  std::unordered_map<LaneNumber, std::map<ProcessNumber, Points>> published_;
  std::vector<std::pair<Known, Known>> undecided_;
  std::vector<SharedRace> races_;
};

}  // namespace sanitizer
