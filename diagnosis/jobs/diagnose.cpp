#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/process.hpp"
#include "diagnosis/job.hpp"
#include "diagnosis/jobs/findings.hpp"
#include "diagnosis/jobs/job_table.hpp"
#include "diagnosis/jobs/job_waits.hpp"
#include "diagnosis/jobs/unstarted.hpp"

namespace vccl {
namespace {

// For how long each process is watched to see whether it computes. The clock that tells is exact to
// nanoseconds, but a process that computes may have no processor for a while.
constexpr auto kSample = std::chrono::milliseconds(60);

std::vector<ObservedProcess> read_recorders(Diagnosis& diagnosis, const DiagnosisOptions& options) {
  std::vector<ObservedProcess> processes;
  for (auto& found : find_flight_recorders()) {
    try {
      if (!found.reader) throw FlightRefused(found.problem);
      const auto process = found.reader->read_process();
      if (process.rank < 0) continue;
      const auto job = get_text(process.job);
      if (!options.only_job.empty() && !job.empty() && job != options.only_job) continue;
      // What another rank, or a child, holds of a dead process (jobs_of() looks which of these count).
      if (!found.alive) {
        processes.push_back({found.pid, 0, found.reader->read(), Activity::gone});
        continue;
      }
      processes.push_back(
          {found.pid, base::status_of(found.pid).parent, found.reader->read(), Activity::sleeps});
    } catch (const FlightRefused& refused) {
      diagnosis.unreadable.push_back({found.pid ? found.pid : found.holder, refused.what()});
    }
  }
  return processes;
}

/// Watches what the processes that live do for a moment.
void watch(std::vector<ObservedProcess>& processes) {
  std::vector<std::unique_ptr<ActivityWatch>> watches;  // null for the dead
  for (const auto& process : processes)
    watches.push_back(process.activity == Activity::gone ? nullptr
                                                         : std::make_unique<ActivityWatch>(process.pid));
  if (std::ranges::any_of(watches, [](const auto& watch) { return watch != nullptr; }))
    std::this_thread::sleep_for(kSample);
  for (std::size_t i = 0; i < watches.size(); ++i)
    if (watches[i]) processes[i].activity = watches[i]->look();
}

/// Returns when a group of the job was last made, or an operation called, started or completed.
std::int64_t last_event(const Job& job) {
  std::int64_t last = 0;
  for (const auto& [number, rank] : job.ranks) {
    for (const auto& entry : rank.snapshot.entries)
      last = std::max({last, entry.created_ns, entry.started_ns, entry.completed_ns});
    for (const auto& [group, progress] : rank.snapshot.groups) last = std::max(last, group.opened_ns);
  }
  return last;
}

void ask_for_stacks_of(Job& job, const DiagnosisOptions& options, std::int64_t now) {
  const auto lasting = options.lasting.count();
  const auto last = last_event(job);
  const bool rests = now - last >= lasting;
  std::set<int> awaited;
  for (const JobWait& wait : job.waits)
    if (now - wait.since_ns >= lasting) awaited.insert(wait.awaited.begin(), wait.awaited.end());
  std::vector<JobRank*> asked;
  std::vector<pid_t> pids;
  std::vector<int> far;
  for (auto& [number, rank] : job.ranks) {
    if (!may_run(rank.activity) || !(rests || awaited.contains(number))) continue;
    if (rank.far) {
      far.push_back(number);
      continue;
    }
    asked.push_back(&rank);
    pids.push_back(rank.pid);
  }
  auto answers = ask_for_stacks(pids, options.stack_patience);
  for (std::size_t i = 0; i < asked.size(); ++i) asked[i]->stacks = std::move(answers[i]);
  if (options.others && !far.empty())
    for (auto& [number, stacks] : options.others->stacks(job, far, options.stack_patience))
      job.ranks.at(number).stacks = std::move(stacks);
  if (rests) find_waits_in_stacks(job, last);
}

bool awaits_unknown_ranks(const Job& job, const DiagnosisOptions& options, std::int64_t now) {
  return std::ranges::any_of(job.waits, [&](const JobWait& wait) {
    // A rank that is awaited in a collective has made the group, and records nothing or is elsewhere.
    return !wait.pending && now - wait.since_ns >= options.lasting.count() &&
           std::ranges::any_of(wait.awaited, [&](int rank) { return !job.ranks.contains(rank); });
  });
}

std::set<pid_t> launchers_of(const Job& job) {
  std::set<pid_t> launchers;
  for (const auto& [number, rank] : job.ranks)
    if (rank.activity != Activity::gone && !rank.far) launchers.insert(base::status_of(rank.pid).parent);
  launchers.erase(0);  // of a rank that has ended
  launchers.erase(1);  // which adopts ranks whose launcher has ended
  return launchers;
}

void ask_other_hosts(Job& job, const DiagnosisOptions& options, bool activity) {
  if (!options.others || static_cast<int>(job.ranks.size()) >= job.size) return;
  add_far_ranks(job, options.others->observe(job, activity), options);
}

}  // namespace

Diagnosis diagnose(const DiagnosisOptions& options) {
  Diagnosis diagnosis;
  auto processes = read_recorders(diagnosis, options);
  watch(processes);
  diagnosis.jobs = jobs_of(std::move(processes), options);
  for (Job& job : diagnosis.jobs) {
    ask_other_hosts(job, options, true);
    const auto now = base::monotonic_ns();
    find_waits(job);
    if (options.stack_patience.count() > 0) ask_for_stacks_of(job, options, now);
    if (awaits_unknown_ranks(job, options, now)) find_unstarted(job, launchers_of(job), kSample);
    find_culprits(job, options.lasting, now);
  }
  return diagnosis;
}

std::vector<Job> calls_of_jobs(const DiagnosisOptions& options) {
  Diagnosis diagnosis;
  auto jobs = jobs_of(read_recorders(diagnosis, options), options);
  for (Job& job : jobs) ask_other_hosts(job, options, false);
  return jobs;
}

std::vector<ObservedProcess> observe_job(const std::string& job, bool activity) {
  Diagnosis diagnosis;
  DiagnosisOptions options;
  options.only_job = job;
  auto processes = read_recorders(diagnosis, options);
  std::erase_if(processes,
                [&](const auto& process) { return get_text(process.snapshot.process.job) != job; });
  if (activity) watch(processes);
  return processes;
}

}  // namespace vccl
