#include "diagnosis/jobs/job_table.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostTensorsInText = 2;
constexpr std::size_t kMostRanks = 1 << 16;  // of a job: only a damaged memory can name more

std::string tensors_text(const FlightEntry& entry, const DiagnosisOptions& options) {
  std::string text;
  const std::size_t listed = entry.listed_inputs ? entry.listed_inputs : entry.listed_outputs;
  std::size_t size_at = 0;
  for (std::size_t i = 0; i < std::min(listed, kMostTensorsInText); ++i) {
    const char* dtype = options.dtype_name ? options.dtype_name(entry.dtypes[i]) : nullptr;
    text += base::text(text.empty() ? "" : ", ", std::string_view(dtype ? dtype : "tensor"), " [");
    for (std::size_t d = 0; d < entry.dimensions[i]; ++d)
      text += base::text(d ? ", " : "", entry.sizes[size_at++]);
    text += "]";
  }
  return text + (listed > kMostTensorsInText ? ", ..." : "");
}

PendingCall call_of(const FlightEntry& entry, const FlightGroup& group, std::size_t place,
                    const DiagnosisOptions& options) {
  PendingCall call;
  call.group = place;
  call.name = get_text(entry.name);
  call.text = entry_text(entry, options);
  call.message = entry.is(FlightEntry::kMessage);
  call.sends = entry.is(FlightEntry::kSends);
  call.started = entry.started_ns != 0;
  call.sequence = call.message ? entry.message_sequence : entry.collective_sequence;
  call.created_ns = entry.created_ns;
  call.tag = entry.tag;
  if (!call.message) return call;
  if (entry.peer >= 0) call.peer = static_cast<int>(group.in_job(static_cast<std::uint32_t>(entry.peer)));
  const std::string peer = call.peer < 0 ? "any rank" : base::text("rank ", call.peer);
  call.text += base::text(call.sends ? " to " : " from ", peer, ", tag ", entry.tag);
  return call;
}

/// Returns the place of the group in the job, which is added to if need be.
std::size_t place_of(Job& job, const FlightGroup& group) {
  const auto found =
      std::ranges::find_if(job.groups, [&](const JobGroup& other) { return is_same(other, group); });
  if (found != job.groups.end()) return static_cast<std::size_t>(found - job.groups.begin());
  job.groups.push_back({get_text(group.name), get_text(group.description), ranks_of(group), {}, {}});
  if (job.groups.back().description == "undefined") job.groups.back().description.clear();
  return job.groups.size() - 1;
}

void add_rank(Job& job, ObservedProcess&& process, const DiagnosisOptions& options) {
  const FlightProcess& facts = process.snapshot.process;
  JobRank& rank = job.ranks[facts.rank];
  rank.rank = facts.rank;
  rank.pid = process.pid;
  rank.host = get_text(facts.host);
  rank.program = get_text(facts.program);
  rank.activity = process.activity;
  rank.far = process.far;
  rank.snapshot = std::move(process.snapshot);
  std::map<std::uint64_t, std::size_t> places;
  for (const auto& [group, progress] : rank.snapshot.groups) {
    const auto place = place_of(job, group);
    places[group.serial] = place;
    // A group of the same name may have been destroyed and made again. Serial numbers ascend.
    job.groups[place].progress[rank.rank] = progress;
    job.groups[place].open[rank.rank] = group.open != 0;
  }
  for (const FlightEntry& entry : rank.snapshot.entries) {
    rank.card = entry.card;
    if (entry.is(FlightEntry::kRetired) || entry.completed_ns != 0 || entry.is(FlightEntry::kBatch)) continue;
    const auto& group = rank.snapshot.group_of(entry).group;
    // What a destroyed group left behind will never end.
    if (group.open) rank.calls.push_back(call_of(entry, group, places.at(entry.group_serial), options));
  }
}

}  // namespace

std::vector<int> ranks_of(const FlightGroup& group) {
  std::vector<int> ranks;
  for (std::uint32_t i = 0; i < group.known_ranks(); ++i) ranks.push_back(static_cast<int>(group.in_job(i)));
  return ranks;
}

bool is_same(const JobGroup& group, const FlightGroup& recorded) {
  return get_text(recorded.name) == group.name && ranks_of(recorded) == group.ranks;
}

const std::string& name_of(const JobGroup& group) {
  return group.description.empty() ? group.name : group.description;
}

std::string entry_text(const FlightEntry& entry, const DiagnosisOptions& options) {
  const auto tensors = tensors_text(entry, options);
  return tensors.empty() ? get_text(entry.name) : base::text(get_text(entry.name), "(", tensors, ")");
}

std::vector<Job> jobs_of(std::vector<ObservedProcess> processes, const DiagnosisOptions& options) {
  std::map<pid_t, std::string> ids;  // by parent
  for (const auto& process : processes)
    if (const auto id = get_text(process.snapshot.process.job); !id.empty()) ids[process.parent] = id;
  // Those that know their job come first, so that a process of another job of the same parent, which knows
  // none yet, takes no place of theirs. The dead come last.
  std::ranges::stable_partition(
      processes, [](const auto& process) { return !get_text(process.snapshot.process.job).empty(); });
  std::ranges::stable_partition(processes,
                                [](const auto& process) { return process.activity != Activity::gone; });
  std::map<std::string, Job> jobs;
  const auto has_place = [&](const std::string& job, int rank) {
    const auto found = jobs.find(job);
    return found == jobs.end() || !found->second.ranks.contains(rank);
  };
  for (auto& process : processes) {
    const FlightProcess& facts = process.snapshot.process;
    if (facts.rank < 0 || facts.rank >= static_cast<int>(kMostRanks)) continue;
    auto id = get_text(facts.job);
    if (id.empty()) {
      const auto relative = ids.find(process.parent);
      id = relative != ids.end() && has_place(relative->second, facts.rank)
               ? relative->second
               : base::text("of process ", process.parent);
    }
    if (!options.only_job.empty() && id != options.only_job) continue;
    if (process.activity == Activity::gone && (!jobs.contains(id) || !has_place(id, facts.rank))) continue;
    Job& job = jobs[id];
    job.id = id;
    job.size = std::max(job.size, facts.size);
    add_rank(job, std::move(process), options);
  }
  std::vector<Job> result;
  for (auto& [id, job] : jobs) result.push_back(std::move(job));
  return result;
}

void add_far_ranks(Job& job, OtherHosts::Answers answers, const DiagnosisOptions& options) {
  for (ObservedProcess& process : answers.processes) {
    const FlightProcess& facts = process.snapshot.process;
    if (get_text(facts.job) != job.id || facts.rank < 0 || facts.rank >= job.size) continue;
    if (!job.ranks.contains(facts.rank)) add_rank(job, std::move(process), options);
  }
  job.unknown = std::move(answers.unknown);
}

}  // namespace vccl
