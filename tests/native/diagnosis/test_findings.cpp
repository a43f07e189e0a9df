// Whom a diagnosis blames, from what recorders and stacks say.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/job.hpp"
#include "diagnosis/jobs/findings.hpp"
#include "diagnosis/jobs/job_table.hpp"
#include "diagnosis/jobs/job_waits.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000, kNow = 1000 * kSecond;

/// Makes what a reader would find of one rank.
class Observed {
 public:
  Observed(int rank, int size) {
    process_.pid = 1000 + rank;
    process_.parent = 999;
    auto& facts = process_.snapshot.process;
    facts.rank = rank;
    facts.size = size;
    put_text(facts.job, "job");
    std::vector<std::uint64_t> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(static_cast<std::uint64_t>(i));
    add_group("world", ranks);
  }

  Observed& add_group(const char* name, const std::vector<std::uint64_t>& ranks) {
    FlightSnapshot::Group group;
    group.group.serial = process_.snapshot.groups.size() + 1;
    group.group.open = 1;
    put_text(group.group.name, name);
    group.group.set_ranks(ranks);
    process_.snapshot.groups.push_back(group);
    return *this;
  }
  Observed& done(std::uint64_t collectives, std::uint64_t group = 1) {
    auto& progress = process_.snapshot.groups[group - 1].progress;
    progress.enqueued[0] = progress.started[0] = progress.completed[0] = collectives;
    return *this;
  }
  Observed& calls(std::uint64_t sequence, std::uint64_t group = 1, bool started = true) {
    auto& progress = process_.snapshot.groups[group - 1].progress;
    progress.enqueued[0] = sequence;
    if (started) progress.started[0] = sequence;
    FlightEntry entry = entry_of("all_reduce", group, started);
    entry.collective_sequence = sequence;
    return add(entry);
  }
  Observed& sends(int peer, int tag = 0) { return add(message("send", peer, tag, true)); }
  Observed& will_send(int peer) { return add(message("send", peer, 0, true, false)); }
  Observed& will_receive(int peer) { return add(message("recv", peer, 0, false, false)); }
  Observed& receives(int peer, int tag = 0) { return add(message("recv", peer, tag, false)); }
  Observed& has_received(int peer, int tag = 0) {
    FlightEntry entry = message("recv", peer, tag, false);
    entry.flags |= FlightEntry::kRetired;
    entry.completed_ns = kNow - kSecond;
    return add(entry);
  }
  Observed& was_struck(const char* fault) {
    process_.snapshot.process.faults = 1;
    put_text(process_.snapshot.process.last_fault, fault);
    return *this;
  }
  Observed& is(Activity activity) {
    process_.activity = activity;
    return *this;
  }
  ObservedProcess process() const { return process_; }

 private:
  static FlightEntry entry_of(const char* name, std::uint64_t group, bool started) {
    FlightEntry entry;
    put_text(entry.name, name);
    entry.group_serial = static_cast<std::uint32_t>(group);
    entry.created_ns = kNow - 10 * kSecond;
    if (started) entry.started_ns = entry.created_ns + 1;
    return entry;
  }
  static FlightEntry message(const char* name, int peer, int tag, bool sends, bool started = true) {
    FlightEntry entry = entry_of(name, 1, started);
    entry.flags = FlightEntry::kMessage;
    if (sends) entry.flags |= FlightEntry::kSends;
    entry.peer = peer;
    entry.tag = tag;
    return entry;
  }
  Observed& add(FlightEntry entry) {
    entry.number = process_.snapshot.entries.size();
    process_.snapshot.entries.push_back(entry);
    return *this;
  }

  ObservedProcess process_;
};

Job job_of(std::initializer_list<Observed> all) {
  std::vector<ObservedProcess> processes;
  for (const auto& observed : all) processes.push_back(observed.process());
  auto jobs = jobs_of(std::move(processes), {});
  CHECK_EQ(jobs.size(), std::size_t{1});
  return std::move(jobs.front());
}

/// The rank stands in `function` of the user's code, or of torch.distributed if `distributed`.
void stands(Job& job, int rank, const char* function, bool waits, bool distributed = false) {
  Stacks stacks;
  stacks.main_known = true;
  stacks.waits = waits;
  ThreadStack stack;
  if (distributed)
    stack.frames.push_back({"/x/site-packages/torch/distributed/distributed_c10d.py", function, 5});
  stack.frames.push_back({"/home/me/train.py", distributed ? "main" : function, 12});
  stacks.threads.push_back(stack);
  job.ranks.at(rank).stacks = stacks;
}

const std::vector<Finding>& judge(Job& job) {
  if (std::ranges::any_of(job.ranks, [](const auto& entry) { return entry.second.stacks.has_value(); }))
    find_waits_in_stacks(job, kNow - 5 * kSecond);
  find_culprits(job, std::chrono::seconds(2), kNow);
  return job.findings;
}

const std::vector<Finding>& judge(Job&& job) = delete;

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

bool is(const Finding& finding, const char* kind, std::vector<int> culprits) {
  return finding.kind == kind && finding.culprits == culprits;
}

}  // namespace

TEST(a_rank_that_has_not_called) {
  Job job = job_of({Observed(0, 3).calls(4), Observed(1, 3).calls(4), Observed(2, 3).done(3)});
  find_waits(job);
  stands(job, 2, "load_batch", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "missing", {2}));
  CHECK(has(findings[0].text, "Ranks 0, 1 wait in all_reduce, collective 4 of group world for rank 2"));
  CHECK(has(findings[0].text, "rank 2 has called 3 collectives of the group"));
  CHECK(has(findings[0].text, "Rank 2 sleeps in load_batch (train.py:12)"));
}

TEST(a_wait_that_has_not_lasted_blames_nobody) {
  Job job = job_of({Observed(0, 2).calls(4), Observed(1, 2).done(3)});
  find_waits(job);
  for (auto& wait : job.waits) wait.since_ns = kNow - kSecond;
  CHECK(judge(job).empty());
}

TEST(all_have_called_and_nobody_is_blamed) {
  Job job = job_of({Observed(0, 2).calls(4), Observed(1, 2).calls(4)});
  find_waits(job);
  CHECK(judge(job).empty());
}

TEST(who_waits_for_the_culprit_is_not_blamed) {
  // Rank 0 waits for rank 1 in "world", and rank 1 for rank 2 in "pair".
  Job job = job_of({Observed(0, 3).calls(1), Observed(1, 3).add_group("pair", {1, 2}).calls(1, 2),
                    Observed(2, 3).add_group("pair", {1, 2}).calls(1, 1, true)});
  find_waits(job);
  stands(job, 1, "all_reduce", true, true);
  stands(job, 2, "all_reduce", true, true);
  const auto& findings = judge(job);
  // Rank 2 waits for rank 1 in "world" as well: a circle of 1 and 2, which rank 0 is not part of.
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "cycle", {1, 2}));
}

TEST(an_asynchronous_call_does_not_excuse_a_rank_that_sleeps) {
  Job job = job_of({Observed(0, 2).add_group("other", {0, 1}).calls(1, 2),
                    Observed(1, 2).add_group("other", {0, 1}).calls(1, 1)});
  find_waits(job);
  stands(job, 0, "all_reduce", true, true);
  stands(job, 1, "read_file", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "missing", {1}));
}

TEST(stopped_and_absent_ranks) {
  Job job = job_of(
      {Observed(0, 4).calls(2), Observed(1, 4).calls(2), Observed(2, 4).done(1).is(Activity::stopped)});
  find_waits(job);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{2});
  const auto stopped = std::ranges::find(findings, "stopped", &Finding::kind);
  CHECK(stopped != findings.end() && is(*stopped, "stopped", {2}) && has(stopped->text, "SIGCONT"));
  const auto absent = std::ranges::find(findings, "missing", &Finding::kind);
  CHECK(absent != findings.end() && is(*absent, "missing", {3}) && has(absent->text, "no process here"));
}

TEST(a_ring_of_receives_and_a_message_of_another_tag) {
  Job ring = job_of({Observed(0, 3).receives(2), Observed(1, 3).receives(0), Observed(2, 3).receives(1)});
  find_waits(ring);
  CHECK(judge(ring).size() == 1 && is(ring.findings[0], "cycle", {0, 1, 2}));
  Job tags = job_of({Observed(0, 2).sends(1, 3), Observed(1, 2).receives(0, 5)});
  find_waits(tags);
  CHECK(judge(tags).size() == 1 && is(tags.findings[0], "unmatched", {0, 1}));
  CHECK(has(tags.findings[0].text, "tag 3") && has(tags.findings[0].text, "tag 5"));
}

TEST(messages_behind_other_work_of_their_stream_wait_for_no_peer) {
  // The ring is behind a collective that all ranks are in.
  Job ring = job_of({Observed(0, 2).calls(1).will_send(1).will_receive(1),
                     Observed(1, 2).calls(1).will_send(0).will_receive(0)});
  find_waits(ring);
  CHECK(judge(ring).empty());
  // Rank 1 computes before what it sends.
  Job late = job_of({Observed(0, 2).receives(1), Observed(1, 2).will_send(0)});
  find_waits(late);
  stands(late, 1, "compute", true);
  CHECK(judge(late).size() == 1 && is(late.findings[0], "missing", {1}));
}

TEST(a_circle_of_more_ranks_than_the_text_names) {
  // The last rank stands in new_group, and the others wait for messages in a ring that it is part of.
  Job job = job_of({Observed(0, 7).receives(6), Observed(1, 7).receives(0), Observed(2, 7).receives(1),
                    Observed(3, 7).receives(2), Observed(4, 7).receives(3), Observed(5, 7).receives(4),
                    Observed(6, 7)});
  find_waits(job);
  stands(job, 6, "new_group", true, true);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "cycle", {0, 1, 2, 3, 4, 5, 6}));
}

TEST(a_peer_that_has_done_its_part_is_not_waited_for) {
  // Rank 0 has a batch under way: what it sends to rank 1 has been received, and rank 2 sends nothing.
  Job job = job_of({Observed(0, 3).sends(1).receives(2), Observed(1, 3).has_received(0), Observed(2, 3)});
  find_waits(job);
  stands(job, 1, "compute", false);
  stands(job, 2, "forgets", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "missing", {2}));
}

TEST(ranks_in_new_group_wait_for_the_one_that_is_elsewhere) {
  Job job = job_of({Observed(0, 3).done(3), Observed(1, 3).done(3), Observed(2, 3).done(3)});
  find_waits(job);
  stands(job, 0, "new_group", true, true);
  stands(job, 1, "new_group", true, true);
  stands(job, 2, "prepare", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "missing", {2}));
  CHECK(has(findings[0].text, "Ranks 0, 1 wait in new_group for rank 2"));
}

TEST(a_rank_that_was_stopped_inside_of_a_collective_is_found) {
  Job job = job_of(
      {Observed(0, 3).calls(2), Observed(1, 3).calls(2).is(Activity::stopped), Observed(2, 3).calls(2)});
  find_waits(job);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(is(findings[0], "stopped", {1}));
  CHECK(has(findings[0].text, "Ranks 0, 2 wait in all_reduce"));
}

TEST(a_fault_on_purpose_is_told_with_the_place) {
  Job job = job_of({Observed(0, 2).calls(2), Observed(1, 2).done(1).was_struck("stall before all_reduce 2")});
  find_waits(job);
  stands(job, 1, "load", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{1});
  CHECK(has(findings[0].text,
            "Rank 1 sleeps in load (train.py:12); the last fault that struck it on purpose was "
            "stall before all_reduce 2."));
}

TEST(those_who_are_few_come_first) {
  Job job = job_of({Observed(0, 5).calls(2), Observed(1, 5).done(1), Observed(2, 5).done(1),
                    Observed(3, 5).done(1), Observed(4, 5).done(1)});
  find_waits(job);
  for (int rank = 1; rank < 4; ++rank) stands(job, rank, "validate", false);
  stands(job, 4, "save", false);
  const auto& findings = judge(job);
  CHECK_EQ(findings.size(), std::size_t{2});
  CHECK(is(findings[0], "missing", {4}) && is(findings[1], "missing", {1, 2, 3}));
  CHECK(has(findings[1].text, "Each of ranks 1, 2, 3 sleeps in validate"));
}

TEST_MAIN
