// Which two calls ranks have made in different order, from what their recorders say.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/job.hpp"
#include "diagnosis/jobs/job_table.hpp"
#include "tests/native/check.hpp"
#include "tests/native/diagnosis/observed.hpp"

using namespace vccl;

namespace {

struct Call {
  int group;  // 1: "dp", 2: "tp", 3: "solo", which has this rank only
  std::uint64_t sequence;
  bool over = true;
  const char* stack = "";
  std::int16_t card = 0;
};

ObservedProcess process_of(int rank, const std::vector<Call>& calls) {
  ObservedProcess process = observed_rank(rank, 2);
  auto& snapshot = process.snapshot;
  for (const char* name : {"dp", "tp", "solo"}) {
    FlightSnapshot::Group group;
    group.group.serial = snapshot.groups.size() + 1;
    group.group.open = 1;
    put_text(group.group.name, std::to_string(snapshot.groups.size()));
    put_text(group.group.description, name);
    const bool solo = snapshot.groups.size() == 2;
    group.group.set_ranks(solo ? std::vector{std::uint64_t(rank)} : std::vector<std::uint64_t>{0, 1});
    snapshot.groups.push_back(group);
  }
  for (const Call& call : calls) {
    FlightEntry entry;
    put_text(entry.name, "all_reduce");
    entry.number = snapshot.entries.size();
    entry.group_serial = static_cast<std::uint32_t>(call.group);
    entry.collective_sequence = call.sequence;
    entry.card = call.card;
    if (call.over) {
      entry.flags |= FlightEntry::kRetired;
      entry.completed_ns = 1;
    }
    snapshot.entries.push_back(entry);
    snapshot.stacks.emplace_back(call.stack);
  }
  snapshot.recorded = calls.size();
  return process;
}

std::string text_of(const std::vector<Call>& first, const std::vector<Call>& second,
                    const std::string& group = "dp", std::uint64_t lost = 0) {
  auto other = process_of(1, second);
  other.snapshot.recorded += lost;
  const auto jobs = jobs_of({process_of(0, first), std::move(other)}, {});
  CHECK(jobs.size() == 1);
  return order_text(jobs[0], group, 0, 1, {});
}

}  // namespace

TEST(both_calls_of_both_ranks_are_named) {
  const auto text =
      text_of({{1, 1, false, "step\t/home/a.py\t10\n"}, {2, 1, false, "step\t/home/a.py\t11\n"}},
              {{2, 1, false, "step\t/home/a.py\t20\n"}, {1, 1, false, "step\t/home/a.py\t21\n"}});
  CHECK(text ==
        "Rank 1 called all_reduce, collective 1 of group tp, in step (a.py:20), before all_reduce, "
        "collective 1 "
        "of group dp, in step (a.py:21). Rank 0 called the latter first, in step (a.py:10), and then the "
        "former, "
        "in step (a.py:11).");
}

TEST(a_call_that_has_not_come_yet) {
  const auto text = text_of({{2, 1}, {1, 3, false}}, {{2, 1}, {2, 2}, {1, 3, false}});
  CHECK(text ==
        "Rank 1 called all_reduce, collective 2 of group tp, before all_reduce, collective 3 of group dp. "
        "Rank 0 called the latter first, and has not called the former yet.");
}

TEST(only_groups_that_contain_the_group_count) {
  const auto text = text_of({{3, 1}, {1, 1, false}, {2, 1, false}}, {{2, 1, false}, {1, 1, false}});
  CHECK(text ==
        "Rank 1 called all_reduce, collective 1 of group tp, before all_reduce, collective 1 of group dp. "
        "Rank 0 "
        "called the latter first, and then the former.");
  CHECK(text_of({{3, 1}, {1, 1, false}}, {{1, 1, false}}).empty());
}

TEST(a_recorder_that_has_lost_entries_blames_nobody) {
  CHECK(text_of({{2, 7}, {1, 1, false}}, {{1, 1, false}}, "dp", 0) != "");
  CHECK(text_of({{2, 7}, {1, 1, false}}, {{1, 1, false}}, "dp", 5).empty());
}

TEST(what_is_in_order_gives_no_text) {
  CHECK(text_of({{2, 1}, {1, 1, false}}, {{2, 1}, {1, 1, false}}).empty());
  CHECK(text_of({{2, 1}, {1, 1}}, {{1, 1, false}}).empty());            // nothing is under way on rank 0
  CHECK(text_of({{1, 1, false}}, {{1, 1, false}}, "another").empty());  // no such group
  CHECK(text_of({{1, 1, false}}, {{2, 1, true, "", -1}, {1, 1, false}}).empty());  // on the CPU
}

TEST_MAIN
