#include "diagnosis/jobs/job_waits.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "diagnosis/jobs/frames.hpp"
#include "diagnosis/jobs/job_table.hpp"

namespace vccl {
namespace {

std::string call_text(const Job& job, const PendingCall& call) {
  const JobGroup& group = job.groups[call.group];
  const std::string& name = name_of(group);
  return call.message ? base::text(call.text, ", in group ", name)
                      : base::text(call.text, ", collective ", call.sequence, " of group ", name);
}

const FlightSnapshot::Progress* progress_of(const JobGroup& group, int rank) {
  const auto found = group.progress.find(rank);
  return found == group.progress.end() ? nullptr : &found->second;
}

/// Returns whether the rank's process cannot go on by itself.
bool is_held(const Job& job, int rank) {
  const auto found = job.ranks.find(rank);
  return found != job.ranks.end() && !may_run(found->second.activity);
}

/// Returns the members that have not called the collective, or else those that have not started it, or else
/// those that stopped in it.
std::vector<int> awaited_in_collective(const Job& job, int rank, const PendingCall& call) {
  const JobGroup& group = job.groups[call.group];
  std::vector<int> not_called, not_started, held;
  for (const int member : group.ranks) {
    if (member == rank) continue;
    const auto* progress = progress_of(group, member);
    if (!progress || progress->enqueued[0] < call.sequence)
      not_called.push_back(member);
    else if (progress->started[0] < call.sequence)
      not_started.push_back(member);
    else if (progress->completed[0] < call.sequence && is_held(job, member))
      held.push_back(member);
  }
  if (!not_called.empty()) return not_called;
  if (!call.started) return {};
  return not_started.empty() ? held : not_started;
}

bool is_of_group(const FlightSnapshot& snapshot, const FlightEntry& entry, const JobGroup& group) {
  return get_text(snapshot.group_of(entry).group.name) == group.name;
}

/// Returns how many messages with this rank the peer has completed since `since_ns` that fit the call.
std::size_t served(const JobRank& peer, const JobGroup& group, int rank, const PendingCall& call,
                   std::int64_t since_ns) {
  std::size_t count = 0;
  for (const FlightEntry& entry : peer.snapshot.entries) {
    if (!entry.is(FlightEntry::kMessage) || entry.is(FlightEntry::kBatch)) continue;
    if (entry.is(FlightEntry::kSends) == call.sends || entry.tag != call.tag) continue;
    if (entry.completed_ns < since_ns || !is_of_group(peer.snapshot, entry, group)) continue;
    const auto& of_peer = peer.snapshot.group_of(entry).group;
    const auto other = entry.peer < 0 ? -1 : of_peer.in_job(static_cast<std::uint32_t>(entry.peer));
    if (other == rank || other < 0) ++count;
  }
  return count;
}

/// Returns whether the peer has done its part of the message. Messages of one tag are matched in their order,
/// so the peer's part of the older ones comes before. The peer may have done its part of still older calls,
/// which are over here, in the same time. Then it counts as done too early, and nobody is blamed.
bool is_served(const Job& job, const JobGroup& group, const JobRank& rank, const PendingCall& call) {
  const auto peer = job.ranks.find(call.peer);
  if (peer == job.ranks.end()) return false;
  std::size_t before = 0;
  std::int64_t since = call.created_ns;
  for (const PendingCall& other : rank.calls) {
    if (&other == &call) break;
    if (!other.message || other.sends != call.sends || other.peer != call.peer || other.tag != call.tag)
      continue;
    if (other.group != call.group) continue;
    if (before++ == 0) since = other.created_ns;
  }
  return served(peer->second, group, rank.rank, call, since) > before;
}

std::vector<int> awaited_in_message(const Job& job, const JobRank& rank, const PendingCall& call) {
  const JobGroup& group = job.groups[call.group];
  if (call.peer == rank.rank) return {};
  if (call.peer >= 0)
    return is_served(job, group, rank, call) ? std::vector<int>() : std::vector<int>{call.peer};
  std::vector<int> others = group.ranks;
  std::erase(others, rank.rank);
  return others;
}

/// Finds ranks that wait in the first use of a card by a group: the recorder has no entry of the call yet.
void find_waits_in_meetings(Job& job) {
  for (const JobGroup& group : job.groups) {
    const auto meets = [&](int rank) {
      const auto* progress = progress_of(group, rank);
      return progress && progress->meets_since_ns != 0;
    };
    for (const int rank : group.ranks) {
      const auto its = job.ranks.find(rank);
      if (!meets(rank) || its == job.ranks.end() || its->second.activity == Activity::gone) continue;
      std::vector<int> elsewhere;
      std::ranges::copy_if(group.ranks, std::back_inserter(elsewhere), std::not_fn(meets));
      if (elsewhere.empty()) continue;
      job.waits.push_back({rank, base::text("the first use of a card by group ", name_of(group)), group.name,
                           std::move(elsewhere), progress_of(group, rank)->meets_since_ns, nullptr});
    }
  }
}

}  // namespace

void find_waits(Job& job) {
  job.waits.clear();
  find_waits_in_meetings(job);
  for (auto& [number, rank] : job.ranks) {
    if (rank.activity == Activity::gone) continue;  // its calls will never end
    bool first = true;                              // of the collectives that have not started
    for (const PendingCall& call : rank.calls) {
      std::vector<int> awaited;
      if (call.message) {
        // One that has not started waits for its own rank's stream, and not yet for the peer.
        if (call.started) awaited = awaited_in_message(job, rank, call);
      } else if (call.started || std::exchange(first, false)) {
        awaited = awaited_in_collective(job, number, call);
      }
      if (awaited.empty()) continue;
      job.waits.push_back({number, call_text(job, call), job.groups[call.group].name, std::move(awaited),
                           call.created_ns, &call});
    }
  }
}

std::string distributed_function(const JobRank& rank) {
  if (!rank.stacks || rank.stacks->threads.empty() || !rank.stacks->main_known) return {};
  std::string found;
  for (const Frame& frame : rank.stacks->threads.front().frames) {
    if (is_own(frame)) break;
    const bool wraps = frame.function == "wrapper" || frame.function == "inner";
    if (frame.file.find("/torch/distributed/") != std::string::npos && !wraps) found = frame.function;
  }
  return found;
}

void find_waits_in_stacks(Job& job, std::int64_t since_ns) {
  std::map<int, std::string> functions;
  std::set<int> waiting;
  for (const JobWait& wait : job.waits) waiting.insert(wait.rank);
  for (const auto& [number, rank] : job.ranks) functions[number] = distributed_function(rank);
  for (const auto& [number, rank] : job.ranks) {
    const std::string& function = functions[number];
    if (function.empty() || waiting.contains(number) || rank.activity == Activity::computes) continue;
    std::vector<int> elsewhere;
    // A rank that others know of may have no process here, or none that has got as far as making a group.
    for (int other = 0; other < job.size; ++other)
      if (const auto found = functions.find(other); found == functions.end() || found->second != function)
        elsewhere.push_back(other);
    if (!elsewhere.empty())
      job.waits.push_back({number, function, "", std::move(elsewhere), since_ns, nullptr});
  }
}

}  // namespace vccl
