// What a diagnosis makes of the answers of other hosts. A recorder of this process is the rank that is here.
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "diagnosis/job.hpp"
#include "recorder/flight_recorder.hpp"
#include "tests/native/check.hpp"
#include "tests/native/diagnosis/observed.hpp"

using namespace vccl;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
const std::string kJob = "job of " + std::to_string(getpid());

FlightGroup world(int size) {
  FlightGroup group;
  put_text(group.name, "world");
  std::vector<std::uint64_t> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(static_cast<std::uint64_t>(i));
  group.set_ranks(ranks);
  return group;
}

/// Rank 0 of a job of three ranks, which has called an all_reduce some seconds ago and waits for the others.
class RankHere {
 public:
  RankHere() : recorder_({.entries = 16}) {
    FlightProcess process;
    process.rank = 0;
    process.size = 3;
    put_text(process.job, kJob);
    recorder_.set_process(process);
    FlightEntry entry;
    entry.collective_sequence = 1;
    entry.created_ns = base::monotonic_ns() - 10 * kSecond;
    put_text(entry.name, "all_reduce");
    const auto operation = recorder_.begin(recorder_.open_group(world(3)), {&entry, 1});
    recorder_.started(operation, entry.created_ns);
  }

 private:
  FlightRecorder recorder_;
};

/// Returns what another host says of a rank that has made the group and called nothing.
ObservedProcess far_rank(int rank, const std::string& job = kJob) {
  ObservedProcess process = observed_rank(rank, 3);
  process.far = true;
  process.pid = getpid();  // the number means something else there
  put_text(process.snapshot.process.job, job);
  put_text(process.snapshot.process.host, "there");
  FlightSnapshot::Group group;
  group.group = world(3);
  group.group.serial = 1;
  group.group.open = 1;
  process.snapshot.groups.push_back(group);
  return process;
}

struct Hosts final : OtherHosts {
  Answers answers;
  std::map<int, Stacks> stacks_there;
  int observed = 0;
  std::vector<int> asked_for_stacks;

  Answers observe(const Job& job, bool) noexcept override {
    if (job.id != kJob) return {};
    ++observed;
    return answers;
  }
  std::map<int, Stacks> stacks(const Job&, const std::vector<int>& ranks,
                               std::chrono::milliseconds) noexcept override {
    asked_for_stacks = ranks;
    return stacks_there;
  }
};

Job look(Hosts& hosts) {
  DiagnosisOptions options;
  options.only_job = kJob;
  options.stack_patience = std::chrono::milliseconds(1);
  options.others = &hosts;
  auto diagnosis = diagnose(options);
  CHECK_EQ(diagnosis.jobs.size(), std::size_t{1});
  return std::move(diagnosis.jobs.front());
}

Stacks stands_in(const char* function) {
  Stacks stacks;
  stacks.main_known = true;
  stacks.threads.push_back({1, {{"/home/me/train.py", function, 12}}});
  return stacks;
}

TEST(a_missing_rank_is_found_on_another_host) {
  const RankHere here;
  Hosts hosts;
  hosts.answers.processes = {far_rank(1), far_rank(2)};
  hosts.answers.processes[1].snapshot.groups[0].progress.enqueued = {1, 0};
  hosts.stacks_there = {{1, stands_in("load")}};
  const Job job = look(hosts);
  CHECK(job.ranks.at(1).far && !job.ranks.at(0).far);
  CHECK_EQ(job.ranks.at(1).host, std::string("there"));
  CHECK_EQ(hosts.asked_for_stacks.size(), std::size_t{1});  // rank 2 is not awaited
  CHECK_EQ(job.findings.size(), std::size_t{1});
  CHECK(job.findings[0].culprits == std::vector<int>{1});
  CHECK(job.findings[0].text.ends_with("Rank 1 sleeps in load (train.py:12)."));
}

TEST(hosts_that_do_not_answer_are_named) {
  const RankHere here;
  Hosts hosts;
  hosts.answers.unknown = {{"silent", {1}, true}, {"knows-nothing", {2}, false}};
  std::string text;
  for (const Finding& finding : look(hosts).findings) text += finding.text;
  CHECK(text.find("Rank 1 is on host silent, where nobody answers.") != std::string::npos);
  CHECK(text.find("Rank 2 has no process on host knows-nothing: ") != std::string::npos);
}

TEST(answers_about_other_jobs_and_known_ranks_do_not_count) {
  const RankHere here;
  Hosts hosts;
  hosts.answers.processes = {far_rank(0), far_rank(1, "another job"), far_rank(3), far_rank(-1)};
  const Job job = look(hosts);
  CHECK_EQ(job.ranks.size(), std::size_t{1});
  CHECK(!job.ranks.at(0).far);
}

TEST(nobody_is_asked_about_a_job_that_is_all_here) {
  const RankHere here;
  FlightRecorder second({.entries = 4}), third({.entries = 4});
  int rank = 0;
  for (FlightRecorder* recorder : {&second, &third}) {
    FlightProcess process;
    process.rank = ++rank;
    process.size = 3;
    put_text(process.job, kJob);
    recorder->set_process(process);
  }
  Hosts hosts;
  look(hosts);
  CHECK_EQ(hosts.observed, 0);
}

}  // namespace

TEST_MAIN
