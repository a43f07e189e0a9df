#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "diagnosis/job.hpp"
#include "diagnosis/jobs/call_texts.hpp"
#include "diagnosis/jobs/job_table.hpp"

namespace vccl {
namespace {

/// A collective on cards, as one rank has recorded it.
struct Called {
  const FlightEntry* entry = nullptr;
  std::size_t place = 0;  // among the rank's entries

  std::uint64_t sequence() const { return entry->collective_sequence; }
};

/// Returns what the rank has recorded of the group's collectives on cards, in the order of its calls.
std::vector<Called> calls_of(const JobRank& rank, const JobGroup& group) {
  std::vector<Called> calls;
  const auto& entries = rank.snapshot.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const FlightEntry& entry = entries[i];
    if (entry.card < 0 || entry.is(FlightEntry::kMessage) || entry.is(FlightEntry::kReplayed)) continue;
    if (is_same(group, rank.snapshot.group_of(entry).group)) calls.push_back({&entry, i});
  }
  return calls;
}

/// One group's collectives on one rank, before the call that is compared and behind it.
struct Split {
  std::vector<Called> before, after;

  Split(const std::vector<Called>& calls, const Called& at) {
    for (const Called& call : calls) (call.place < at.place ? before : after).push_back(call);
  }
  std::uint64_t last() const { return before.empty() ? 0 : before.back().sequence(); }
};

const Called* find(const std::vector<Called>& calls, const auto& wanted) {
  const auto found = std::ranges::find_if(calls, wanted);
  return found == calls.end() ? nullptr : &*found;
}

/// A rank, its call of the group that is compared, and its calls of another group.
struct Side {
  const JobRank& rank;
  const Called& call;
  Split others;
};

/// A call of another group that one side has made before the call that is compared, and the other side has
/// not.
struct Inversion {
  const Side *ahead = nullptr, *behind = nullptr;
  const Called *early = nullptr, *late = nullptr;  // on `ahead`, and on `behind` if it has called it since

  explicit Inversion(const Side (&sides)[2]) {
    // A recorder that has lost old entries does not tell how many calls there were.
    if (std::ranges::any_of(sides, [](const Side& side) {
          const auto& snapshot = side.rank.snapshot;
          return side.others.before.empty() && snapshot.recorded > snapshot.entries.size();
        }))
      return;
    const bool first = sides[0].others.last() > sides[1].others.last();
    ahead = &sides[first ? 0 : 1];
    behind = &sides[first ? 1 : 0];
    early = find(ahead->others.before,
                 [&](const Called& call) { return call.sequence() > behind->others.last(); });
    if (early)
      late = find(behind->others.after,
                  [&](const Called& call) { return call.sequence() == early->sequence(); });
  }

  std::string text(const std::string& own, const std::string& group, const DiagnosisOptions& options) const {
    const auto full = [&](const Called& call, const std::string& of) {
      return base::text(entry_text(*call.entry, options), ", collective ", call.sequence(), " of group ", of,
                        place_text(ahead->rank, call.place));
    };
    return base::text("Rank ", ahead->rank.rank, " called ", full(*early, group), ", before ",
                      full(ahead->call, own), ". Rank ", behind->rank.rank, " called the latter first",
                      place_text(behind->rank, behind->call.place),
                      late ? base::text(", and then the former", place_text(behind->rank, late->place), ".")
                           : std::string(", and has not called the former yet."));
  }
};

bool is_pending(const Called& call) {
  return !call.entry->is(FlightEntry::kRetired) && call.entry->completed_ns == 0;
}

bool contains(const JobGroup& group, const JobGroup& other) {
  return std::ranges::all_of(
      other.ranks, [&](int rank) { return std::ranges::find(group.ranks, rank) != group.ranks.end(); });
}

}  // namespace

std::string order_text(const Job& job, const std::string& group, int rank, int other,
                       const DiagnosisOptions& options) {
  const auto first = job.ranks.find(rank), second = job.ranks.find(other);
  if (first == job.ranks.end() || second == job.ranks.end()) return {};
  std::string best;
  for (const JobGroup& own : job.groups) {
    if (name_of(own) != group) continue;
    const auto first_calls = calls_of(first->second, own), second_calls = calls_of(second->second, own);
    const Called* const one = find(first_calls, is_pending);
    const Called* const two = find(second_calls, is_pending);
    if (!one || !two) continue;
    for (const JobGroup& candidate : job.groups) {
      if (&candidate == &own || !contains(candidate, own)) continue;
      const Side sides[] = {{first->second, *one, Split(calls_of(first->second, candidate), *one)},
                            {second->second, *two, Split(calls_of(second->second, candidate), *two)}};
      const Inversion found(sides);
      if (found.early && (best.empty() || found.late))
        best = found.text(unique_name(job, own), unique_name(job, candidate), options);
      // What both ranks have called by now is certain to be in another order.
      if (found.late) return best;
    }
  }
  return best;
}

}  // namespace vccl
