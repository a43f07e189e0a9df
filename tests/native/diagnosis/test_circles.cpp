// Circles among the calls of ranks, from what their recorders say.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/job.hpp"
#include "diagnosis/jobs/job_table.hpp"
#include "tests/native/check.hpp"
#include "tests/native/diagnosis/observed.hpp"

using namespace vccl;

namespace {

using Ranks = std::vector<std::uint64_t>;
using Groups = std::map<std::string, Ranks>;

struct Call {
  std::string group;
  std::uint64_t place;
  const char* stack = "";
};

ObservedProcess process_of(int rank, const Groups& groups, const std::vector<Call>& calls) {
  ObservedProcess process = observed_rank(rank, 8);
  auto& snapshot = process.snapshot;
  std::map<std::string, std::uint64_t> serials;
  for (const auto& [name, ranks] : groups) {
    if (std::ranges::find(ranks, std::uint64_t(rank)) == ranks.end()) continue;
    FlightSnapshot::Group group;
    group.group.serial = serials[name] = snapshot.groups.size() + 1;
    group.group.open = 1;
    put_text(group.group.name, name);
    group.group.set_ranks(ranks);
    snapshot.groups.push_back(group);
  }
  for (const Call& call : calls) {
    FlightEntry entry;
    put_text(entry.name, "all_reduce");
    entry.number = snapshot.entries.size();
    entry.group_serial = static_cast<std::uint32_t>(serials.at(call.group));
    entry.collective_sequence = entry.place_in_order = call.place;
    entry.card = 0;
    entry.created_ns = static_cast<std::int64_t>(entry.number) + 1;
    snapshot.entries.push_back(entry);
    snapshot.stacks.emplace_back(call.stack);
  }
  snapshot.recorded = calls.size();
  return process;
}

std::string text_of(const Groups& groups, const std::vector<std::vector<Call>>& calls) {
  std::vector<ObservedProcess> processes;
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    processes.push_back(process_of(static_cast<int>(rank), groups, calls[rank]));
  const auto jobs = jobs_of(std::move(processes), {});
  CHECK(jobs.size() == 1);
  return circle_text(jobs[0], {});
}

const std::string kBegin =
    "On GPUs this may deadlock: all ranks must use their groups in the same order (VCCL_CHECK=order).";

}  // namespace

TEST(groups_that_overlap) {
  const Groups groups{{"left", {0, 1, 2}}, {"right", {0, 1, 3}}};
  const auto text =
      text_of(groups, {{{"left", 1, "step\t/home/a.py\t10\n"}, {"right", 1, "step\t/home/a.py\t11\n"}},
                       {{"right", 1, "step\t/home/a.py\t20\n"}, {"left", 1, "step\t/home/a.py\t21\n"}},
                       {{"left", 1}},
                       {{"right", 1}}});
  CHECK_EQ(text, kBegin +
                     " Rank 0 called all_reduce, collective 1 of group left, in step (a.py:10), before "
                     "all_reduce, collective 1 of group right, in step (a.py:11). Rank 1 called the latter "
                     "first, in step (a.py:20), and then the former, in step (a.py:21).");
}

TEST(four_groups_of_a_mesh) {
  const Groups groups{{"dp0", {0, 1}}, {"dp1", {2, 3}}, {"tp0", {0, 2}}, {"tp1", {1, 3}}};
  const auto text = text_of(groups, {{{"dp0", 1}, {"tp0", 1}},
                                     {{"tp1", 1}, {"dp0", 1}},
                                     {{"tp0", 1}, {"dp1", 1}},
                                     {{"dp1", 1}, {"tp1", 1}}});
  CHECK(text.starts_with(kBegin));
  for (const char* part :
       {"Rank 0 called all_reduce, collective 1 of group dp0, before all_reduce, collective 1 of group tp0.",
        "Rank 1 called all_reduce, collective 1 of group tp1, before all_reduce, collective 1 of group dp0.",
        "Rank 2 called all_reduce, collective 1 of group tp0, before all_reduce, collective 1 of group dp1.",
        "Rank 3 called all_reduce, collective 1 of group dp1, before all_reduce, collective 1 of group tp1."})
    check_contains(text, part);
  // One rank in another order closes no circle.
  CHECK_EQ(text_of(groups, {{{"dp0", 1}, {"tp0", 1}},
                            {{"tp1", 1}, {"dp0", 1}},
                            {{"dp1", 1}, {"tp0", 1}},
                            {{"dp1", 1}, {"tp1", 1}}}),
           "");
}

TEST(calls_without_a_place_do_not_count) {
  const Groups groups{{"left", {0, 1}}, {"right", {0, 1}}};
  CHECK_EQ(text_of(groups, {{{"left", 0}, {"right", 1}}, {{"right", 1}, {"left", 0}}}), "");
}

TEST(what_a_recorder_has_lost_is_no_circle) {
  const Groups groups{{"left", {0, 1}}, {"right", {0, 1}}};
  CHECK_EQ(text_of(groups, {{{"left", 1}, {"right", 1}, {"left", 2}, {"right", 2}}, {{"right", 2}}}), "");
}

/// Every rank calls what concerns it of one order for all. Some ranks' recorders have lost the begin.
std::vector<std::vector<Call>> right_program(std::mt19937& random, const Groups& groups, int calls) {
  std::vector<std::vector<Call>> ranks(8);
  std::map<std::string, std::uint64_t> places;
  for (int i = 0; i < calls; ++i) {
    const auto group = std::next(groups.begin(), static_cast<long>(random() % groups.size()));
    const Call call{group->first, ++places[group->first]};
    for (const auto rank : group->second) ranks[rank].push_back(call);
  }
  for (auto& rank : ranks)
    rank.erase(rank.begin(), rank.begin() + static_cast<long>(random() % (rank.size() / 2 + 1)));
  return ranks;
}

TEST(right_programs_have_no_circle_and_one_exchange_is_found) {
  std::mt19937 random(7);
  int exchanged = 0;
  for (int round = 0; round < 300; ++round) {
    Groups groups;
    for (int i = 0; i < 6; ++i) {
      Ranks ranks;
      for (std::uint64_t rank = 0; rank < 8; ++rank)
        if (random() % 2) ranks.push_back(rank);
      if (ranks.size() > 1) groups["g" + std::to_string(i)] = ranks;
    }
    if (groups.size() < 2) continue;
    auto calls = right_program(random, groups, round % 10 == 0 ? 2000 : 40);
    CHECK_EQ(text_of(groups, calls), "");
    // Exchanges two neighbouring calls of one rank, which another rank has called next to each other, too.
    for (auto& rank : calls) {
      if (rank.size() < 2) continue;
      const auto at = random() % (rank.size() - 1);
      const auto both = [&](const std::vector<Call>& other) {
        const auto has = [&](const Call& call) {
          return std::ranges::any_of(
              other, [&](const Call& its) { return its.group == call.group && its.place == call.place; });
        };
        return &other != &rank && has(rank[at]) && has(rank[at + 1]);
      };
      if (rank[at].group == rank[at + 1].group || !std::ranges::any_of(calls, both)) continue;
      std::swap(rank[at], rank[at + 1]);
      const auto text = text_of(groups, calls);
      check_contains(text, "called the latter first, and then the former");
      check_contains(text, "ank " + std::to_string(&rank - calls.data()) + " called");
      ++exchanged;
      break;
    }
  }
  CHECK(exchanged > 100);
}

TEST_MAIN
