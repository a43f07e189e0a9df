#include "diagnosis/jobs/findings.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "diagnosis/jobs/unstarted.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostInText = 6;

std::string seconds_text(std::int64_t ns) {
  const std::int64_t tenths = ns / 100'000'000;
  return base::text(tenths / 10, ".", tenths % 10, " s");
}

/// Returns "rank 3" or "ranks 1, 2, 5".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostInText); ++i)
    text += base::text(i ? ", " : "", ranks[i]);
  if (ranks.size() > kMostInText) text += base::text(" and ", ranks.size() - kMostInText, " more");
  return text;
}

/// Returns "Rank 3" or "Each of ranks 1, 2, 5", for a sentence about one.
std::string subject(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? base::text("Rank ", ranks.front()) : "Each of " + ranks_text(ranks);
}

/// Returns "; the last fault that struck it on purpose was kill during all_reduce 3 of group dp, step 2".
std::string fault_text(const JobRank& rank) {
  const FlightProcess& process = rank.snapshot.process;
  if (process.faults == 0) return {};
  return base::text("; the last fault that struck it on purpose was ", get_text(process.last_fault));
}

/// Finds the culprits of one job.
class Search {
 public:
  Search(Job& job, std::int64_t lasting, std::int64_t now) : job_(job), now_(now) {
    for (const JobWait& wait : job.waits)
      if (now - wait.since_ns >= lasting) waits_[wait.rank].push_back(&wait);
  }

  void run() {
    for (const auto& [rank, waits] : waits_) follow(rank);
    report_missing();
    report_circles();
  }

 private:
  /// Follows who is waited for from `first` on.
  void follow(int first) {
    std::set<int> seen;
    std::vector<int> left{first};
    bool blamed = false;
    while (!left.empty()) {
      const int rank = left.back();
      left.pop_back();
      if (!seen.insert(rank).second) continue;
      for (const JobWait* wait : waits_.at(rank)) {
        for (const int awaited : wait->awaited) {
          if (goes_on_waiting(awaited)) {
            left.push_back(awaited);
          } else {
            blamed = true;
            blame(awaited, *wait);
          }
        }
      }
    }
    if (!blamed) circles_.insert(within_circle(seen));
  }

  /// Returns whether the rank itself waits for others, and so is not to blame.
  bool goes_on_waiting(int rank) const {
    const auto found = job_.ranks.find(rank);
    if (found == job_.ranks.end() || !waits_.contains(rank)) return false;
    const JobRank& entry = found->second;
    if (!may_run(entry.activity)) return false;
    const bool knows = entry.stacks && entry.stacks->main_known;
    // Without an answer its pending calls have to do. They may be asynchronous.
    return !knows || entry.stacks->waits || waits_in_stack(rank);
  }

  bool waits_in_stack(int rank) const {
    return std::ranges::any_of(waits_.at(rank), [](const JobWait* wait) { return !wait->pending; });
  }

  void blame(int rank, const JobWait& wait) {
    auto& waits = blamed_[rank];
    if (std::ranges::find(waits, &wait) == waits.end()) waits.push_back(&wait);
  }

  /// Returns those of the ranks that wait for each other: each is reached from all others.
  std::set<int> within_circle(std::set<int> ranks) const {
    const auto is_awaited = [&](int rank) {
      return std::ranges::any_of(ranks, [&](int other) {
        return std::ranges::any_of(waits_.at(other), [&](const JobWait* wait) {
          return std::ranges::find(wait->awaited, rank) != wait->awaited.end();
        });
      });
    };
    while (std::erase_if(ranks, [&](int rank) { return !is_awaited(rank); }) > 0) {
    }
    return ranks;
  }

  std::string kind_of(int rank) const {
    const auto found = job_.ranks.find(rank);
    if (found != job_.ranks.end() && found->second.activity == Activity::gone) return "dead";
    return may_run(activity_of(rank)) ? "missing" : "stopped";
  }

  /// Returns what the rank does, or `sleeps` if its process is not known.
  Activity activity_of(int rank) const {
    if (const auto found = job_.ranks.find(rank); found != job_.ranks.end()) return found->second.activity;
    const auto process = std::ranges::find(job_.unstarted, rank, &UnstartedProcess::rank);
    return process == job_.unstarted.end() ? Activity::sleeps : process->activity;
  }

  /// Culprits that are in the same place, and that the same calls wait for, are one finding. Those that are
  /// fewest come first, because the few that differ are the interesting ones.
  void report_missing() {
    std::map<std::pair<std::string, std::string>, std::vector<int>> alike;
    for (const auto& [rank, waits] : blamed_) alike[{kind_of(rank), place_of(rank)}].push_back(rank);
    std::vector<std::pair<std::pair<std::string, std::string>, std::vector<int>>> sorted(alike.begin(),
                                                                                         alike.end());
    std::ranges::stable_sort(sorted, {}, [](const auto& entry) { return entry.second.size(); });
    for (const auto& [what, ranks] : sorted) {
      const auto& [kind, place] = what;
      job_.findings.push_back(
          {kind, ranks, base::text(waits_text(ranks), ". ", subject(ranks), ' ', place, ".")});
    }
  }

  std::string place_of(int rank) const {
    const auto found = job_.ranks.find(rank);
    if (found != job_.ranks.end()) return whereabouts(found->second) + fault_text(found->second);
    return whereabouts_of_unstarted(job_, rank);
  }

  /// Returns who waits for the ranks, in which calls, and how far the ranks are: "Ranks 0 and 1 wait in ...
  /// for rank 2, since 3.1 s; it has called 3 collectives of the group".
  std::string waits_text(const std::vector<int>& ranks) const {
    std::map<std::string, std::pair<std::vector<int>, const JobWait*>> by_call;
    for (const int rank : ranks) {
      for (const JobWait* wait : blamed_.at(rank)) {
        auto& entry = by_call[wait->call];
        if (std::ranges::find(entry.first, wait->rank) == entry.first.end())
          entry.first.push_back(wait->rank);
        if (!entry.second || wait->since_ns < entry.second->since_ns) entry.second = wait;
      }
    }
    std::string text;
    std::size_t named = 0;
    for (auto& [call, entry] : by_call) {
      if (named++ == 2) return text + ", and in more calls";
      std::ranges::sort(entry.first);
      auto subject = ranks_text(entry.first);
      if (text.empty()) subject.front() = 'R';
      text +=
          base::text(text.empty() ? "" : "; ", subject, entry.first.size() == 1 ? " waits in " : " wait in ",
                     call, for_text(*entry.second, ranks));
      text += base::text(", since ", seconds_text(now_ - entry.second->since_ns));
      text += reached_text(*entry.second, ranks);
    }
    return text;
  }

  /// The text of a message names the rank that is waited for already.
  static std::string for_text(const JobWait& wait, const std::vector<int>& ranks) {
    const bool named = wait.pending && wait.pending->message && wait.pending->peer >= 0;
    return named ? "" : " for " + ranks_text(ranks);
  }

  std::string reached_text(const JobWait& wait, const std::vector<int>& ranks) const {
    if (!wait.pending || wait.pending->message) return "";
    const JobGroup& group = job_.groups[wait.pending->group];
    std::string text;
    for (const int rank : ranks) {
      if (!job_.ranks.contains(rank)) continue;
      const auto progress = group.progress.find(rank);
      const auto open = group.open.find(rank);
      if (progress == group.progress.end())
        text += base::text(", rank ", rank, " has not made the group");
      else if (!open->second)
        text += base::text(", rank ", rank, " has destroyed the group");
      else
        text +=
            base::text(", rank ", rank, " has called ", progress->second.enqueued[0],
                       progress->second.enqueued[0] == 1 ? " collective" : " collectives", " of the group");
      if (text.size() > 200) break;
    }
    return text.empty() ? "" : ";" + text.substr(1);
  }

  void report_circles() {
    for (const auto& members : circles_) {
      if (members.empty()) continue;
      std::string text = "The ranks wait for each other: ";
      std::size_t named = 0;
      for (const int rank : members) {
        if (named++ == kMostInText) {
          text += "; and more";
          break;
        }
        text += base::text(named > 1 ? "; " : "", "rank ", rank);
        std::size_t calls = 0;
        for (const JobWait* wait : waits_.at(rank)) {
          if (calls == 2) break;
          text += base::text(calls++ ? " and in " : " waits in ", wait->call, for_text(*wait, wait->awaited));
        }
      }
      const std::vector<int> culprits(members.begin(), members.end());
      job_.findings.push_back(
          {wait_for_messages_only(members) ? kind_of_messages(members) : "cycle", culprits, text + "."});
    }
  }

  bool wait_for_messages_only(const std::set<int>& members) const {
    return std::ranges::all_of(members, [&](int rank) {
      return std::ranges::all_of(waits_.at(rank),
                                 [](const JobWait* wait) { return wait->pending && wait->pending->message; });
    });
  }

  /// Returns "unmatched" if a rank sends to one that waits for another message of it, and "cycle" otherwise.
  std::string kind_of_messages(const std::set<int>& members) const {
    for (const int rank : members) {
      for (const JobWait* wait : waits_.at(rank)) {
        if (!wait->pending->sends || !waits_.contains(wait->pending->peer)) continue;
        for (const JobWait* other : waits_.at(wait->pending->peer))
          if (other->pending && !other->pending->sends && other->pending->peer == rank) return "unmatched";
      }
    }
    return "cycle";
  }

  Job& job_;
  const std::int64_t now_;
  std::map<int, std::vector<const JobWait*>> waits_;   // that have lasted, by the rank that waits
  std::map<int, std::vector<const JobWait*>> blamed_;  // by the rank that is waited for
  std::set<std::set<int>> circles_;
};

}  // namespace

void find_culprits(Job& job, std::chrono::nanoseconds lasting, std::int64_t now_ns) {
  job.findings.clear();
  Search(job, lasting.count(), now_ns).run();
}

}  // namespace vccl
