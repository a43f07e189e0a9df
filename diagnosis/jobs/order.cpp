#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "diagnosis/job.hpp"
#include "diagnosis/jobs/frames.hpp"
#include "diagnosis/jobs/job_table.hpp"

namespace vccl {
namespace {

/// A collective on cards, as one rank has recorded it.
struct Called {
  const FlightEntry* entry = nullptr;
  std::size_t place = 0;  // among the rank's entries

  std::uint64_t sequence() const { return entry->collective_sequence; }
};

std::string name_of(const FlightGroup& group) {
  const auto description = get_text(group.description);
  return description.empty() || description == "undefined" ? get_text(group.name) : description;
}

/// Returns what the rank has recorded of the group's collectives on cards, in the order of its calls.
std::vector<Called> calls_of(const JobRank& rank, const std::string& group) {
  std::vector<Called> calls;
  const auto& entries = rank.snapshot.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const FlightEntry& entry = entries[i];
    if (entry.card < 0 || entry.is(FlightEntry::kMessage) || entry.is(FlightEntry::kReplayed)) continue;
    if (name_of(rank.snapshot.group_of(entry).group) == group) calls.push_back({&entry, i});
  }
  return calls;
}

/// Returns ", in step (train.py:12)", or an empty text if no frame is known.
std::string place_text(const JobRank& rank, const Called& call) {
  if (call.place >= rank.snapshot.stacks.size()) return {};
  std::istringstream lines(rank.snapshot.stacks[call.place]);
  Frame frame, first;
  std::string line;
  while (std::getline(lines, frame.function, '\t') && std::getline(lines, frame.file, '\t') &&
         std::getline(lines, line)) {
    frame.line = static_cast<int>(std::strtol(line.c_str(), nullptr, 10));
    if (is_own(frame)) return base::text(", in ", frame_text(frame));
    if (first.file.empty()) first = frame;
  }
  return first.file.empty() ? "" : base::text(", in ", frame_text(first));
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

/// `ahead` has called a collective of `group` before, and `behind` has not.
std::string inversion_text(const Side& ahead, const Side& behind, const std::string& own,
                           const std::string& group, const DiagnosisOptions& options) {
  const Called* early =
      find(ahead.others.before, [&](const Called& call) { return call.sequence() > behind.others.last(); });
  if (!early) return {};
  const auto full = [&](const Called& call, const std::string& of) {
    return base::text(call_text(*call.entry, options), ", collective ", call.sequence(), " of group ", of,
                      place_text(ahead.rank, call));
  };
  const Called* late =
      find(behind.others.after, [&](const Called& call) { return call.sequence() == early->sequence(); });
  return base::text("Rank ", ahead.rank.rank, " called ", full(*early, group), ", before ",
                    full(ahead.call, own), ". Rank ", behind.rank.rank, " called the latter first",
                    place_text(behind.rank, behind.call),
                    late ? base::text(", and then the former", place_text(behind.rank, *late), ".")
                         : std::string(", and has not called the former yet."));
}

}  // namespace

std::string order_text(const Job& job, const std::string& group, int rank, int other,
                       const DiagnosisOptions& options) {
  const auto first = job.ranks.find(rank), second = job.ranks.find(other);
  if (first == job.ranks.end() || second == job.ranks.end()) return {};
  const auto is_pending = [](const Called& call) {
    return !call.entry->is(FlightEntry::kRetired) && call.entry->completed_ns == 0;
  };
  const auto first_calls = calls_of(first->second, group), second_calls = calls_of(second->second, group);
  const Called* const one = find(first_calls, is_pending);
  const Called* const two = find(second_calls, is_pending);
  if (!one || !two) return {};
  for (const JobGroup& candidate : job.groups) {
    const std::string name = candidate.description.empty() ? candidate.name : candidate.description;
    if (name == group) continue;
    const Side sides[] = {{first->second, *one, Split(calls_of(first->second, name), *one)},
                          {second->second, *two, Split(calls_of(second->second, name), *two)}};
    const auto a = sides[0].others.last(), b = sides[1].others.last();
    if (a == b) continue;
    return inversion_text(sides[a > b ? 0 : 1], sides[a > b ? 1 : 0], group, name, options);
  }
  return {};
}

}  // namespace vccl
