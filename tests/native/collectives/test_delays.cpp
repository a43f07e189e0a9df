// Runs every algorithm while ranks are delayed at random wherever they wait or let others go on, and
// operations on several communicators at once.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc_pg/collectives/selector.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/delayed.hpp"
#include "tests/native/collectives/families.hpp"
#include "tests/native/collectives/world.hpp"
#include "tests/native/transport/message_traffic.hpp"

using namespace vccl;

namespace {

bool is_short() {
  const char* text = std::getenv("VCCL_TEST_SHORT");
  return text && *text && std::string(text) != "0";
}

// Returns random cases, equally many of each collective: first of 0, 1 and size - 1 elements, then of any
// number.
std::vector<Case> cases_of(std::uint64_t seed, int size, const std::set<Collective>& collectives, int each) {
  const std::size_t counts[] = {0, 1, std::size_t(size) - 1};
  std::map<Collective, int> found;
  for (const auto collective : collectives) found[collective] = 0;
  std::vector<Case> cases;
  while (cases.size() < collectives.size() * std::size_t(each))
    for (Case c : reference::random_cases(++seed, size, 50, 1 << 18)) {
      if (!found.contains(c.collective) || found[c.collective] == each) continue;
      const auto nth = std::size_t(found[c.collective]++);
      if (nth < std::size(counts)) c.count = counts[nth];
      cases.push_back(c);
    }
  return cases;
}

std::size_t memory_for_all(const std::vector<Case>& cases, int size) {
  std::size_t bytes = 4096;
  for (const auto& c : cases) bytes = std::max(bytes, memory_for(c, size));
  return bytes;
}

void play_delayed(std::uint64_t seed, const World& world, const std::vector<Case>& cases) {
  MemoryStore store;
  std::vector<std::vector<std::vector<std::byte>>> outputs(static_cast<std::size_t>(world.size));
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, memory_for_all(cases, world.size),
            [&](Communicator& communicator, std::byte* memory) {
              DelayedCommunicator delayed(communicator, seed);
              for (const auto& c : cases) outputs[std::size_t(rank)].push_back(play(delayed, c, memory));
            });
  });
  check_outputs(cases, outputs);
}

// Returns which algorithms the cases run, where all memory is mapped or none is.
std::set<std::pair<Collective, std::string>> algorithms_run(const World& world,
                                                            const std::vector<Case>& cases) {
  MemoryStore store;
  std::set<std::pair<Collective, std::string>> names;
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, memory_for_all(cases, world.size),
            [&](Communicator& communicator, std::byte* memory) {
              for (const auto& c : cases) {
                CaseCall prepared(c, world.size, rank);
                prepared.call.input = prepared.call.output = memory;
                const Choice choice = choose_algorithms(communicator, prepared.call);
                const bool is_late = choice.first->reach == Reach::mapped && !world.mapped;
                if (rank == 0) names.emplace(c.collective, (is_late ? choice.otherwise : choice.first)->name);
              }
            });
  });
  return names;
}

void every_algorithm(std::uint64_t seed, int mapped) {
  const int each = is_short() ? 4 : 6;
  for (const auto& family : families())
    for (const int size : {2, 3, 5}) {
      const World world{size, mapped, 1, ask_for(family)};
      const auto cases = cases_of(++seed * 1000, size, collectives_of(family), each);
      play_delayed(seed, world, cases);
      if (family == "direct" && !mapped) continue;  // another one steps in
      if (family == "hierarchical") continue;       // the ranks are on one host; see every_algorithm_across()
      const auto names = algorithms_run(world, cases);
      for (const auto collective : collectives_of(family)) CHECK(names.contains({collective, family}));
    }
}

// Does the same with two hosts, whose ranks do not follow each other.
void every_algorithm_across(std::uint64_t seed, int mapped) {
  const int each = is_short() ? 5 : 6;
  for (const std::string family : {"oneshot", "hierarchical", "ring"})
    for (const std::string layout : {"AB", "ABAB", "ABBA", "AABA"}) {
      const World world{.size = int(layout.size()),
                        .mapped = mapped,
                        .hosts = 2,
                        .algorithms = ask_for(family),
                        .maps_across = kMapAcrossHosts || family == "hierarchical",
                        .layout = layout};
      const auto cases = cases_of(++seed * 1000, world.size, collectives_of(family), each);
      play_delayed(seed, world, cases);
      if (family == "hierarchical" && !mapped) continue;  // the ring steps in
      const auto names = algorithms_run(world, cases);
      for (const auto collective : collectives_of(family)) CHECK(names.contains({collective, family}));
    }
}

// Runs ranks as a few processes, or as threads.
struct Group {
  std::vector<int> ranks;
  World world;
};

// Four communicators for each of three ranks: of all ranks in two orders, and of every pair; of one host and
// of several; each with other algorithms.
std::vector<Group> overlapping_groups() {
  return {{{0, 1, 2}, {3, ~0, 1}},
          {{2, 0, 1}, {3, ~0, 2, ask_for("ring")}},
          {{0, 1}, {2, 0, 1, ask_for("staged")}},
          {{2, 1}, {2, ~0, 1, ask_for("ring")}},
          {{0, 2}, {2, 0b01, 1, ask_for("oneshot")}}};
}
constexpr int kRanks = 3;

std::vector<Case> cases_of_group(std::size_t group, int size) {
  return reference::random_cases(900 + group, size, is_short() ? 30 : 100, 1 << 17);
}

// What a rank does as member of one group: its collectives, and beside them in the first group, messages.
void work_as_member(Store& store, std::size_t number, const Group& group, int rank, const Region& card,
                    std::span<std::byte> slice) {
  const auto member = std::find(group.ranks.begin(), group.ranks.end(), rank);
  const int own = int(member - group.ranks.begin());
  const auto cases = cases_of_group(number, group.world.size);
  std::vector<std::byte> plain(slice.size());
  const bool mapped = is_mapped(group.world, own);
  TestRegion mailbox(number == 0 ? 64 << 20 : 4096);
  std::vector<Region> regions;
  if (mapped) regions = {card, mailbox.region()};
  as_member(store, group.world, own, regions, [&](Communicator& communicator) {
    run_threads(number == 0 ? 2 : 1, [&](int part) {
      if (part == 1) {
        for (std::uint64_t seed = 70; seed < 73; ++seed)
          run_traffic(communicator, mailbox, plan_traffic(group.world.size, 40, seed, false), seed);
        return;
      }
      DelayedCommunicator delayed(communicator, number);
      for (const auto& c : cases) play_and_check(delayed, c, mapped ? slice.data() : plain.data());
    });
  });
}

// All of a rank's groups at once, a thread for each; what is mapped lies in one card's memory.
template <class AnyStore>
void work_in_all_groups(std::deque<AnyStore>& stores, int rank) {
  const auto groups = overlapping_groups();
  constexpr std::size_t kSlice = 1 << 20;
  TestRegion card(groups.size() * kSlice);
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (std::count(groups[i].ranks.begin(), groups[i].ranks.end(), rank)) own.push_back(i);
  CHECK_EQ(own.size(), 4u);
  run_threads(int(own.size()), [&](int nth) {
    const std::size_t i = own[std::size_t(nth)];
    CHECK(memory_for_all(cases_of_group(i, groups[i].world.size), groups[i].world.size) <= kSlice);
    work_as_member(stores[i], i, groups[i], rank, card.region(), card.span(i * kSlice, kSlice));
  });
}

}  // namespace

TEST(every_algorithm_in_mapped_memory) {
  every_algorithm(100, ~0);
}

TEST(every_algorithm_in_staged_memory) {
  every_algorithm(200, 0);
}

TEST(every_algorithm_across_hosts) {
  every_algorithm_across(300, ~0);
  every_algorithm_across(400, 0);
}

// Where ranks outnumber cores, work items go to whichever rank is not delayed.
TEST(direct_algorithms_on_one_core) {
  const std::vector<int> core{cores_of_this_thread()[0]};
  for (const int size : {2, 3, 5})
    play_delayed(
        250 + std::uint64_t(size), {size, ~0, 1, ask_for("direct"), core},
        cases_of(250'000 + std::uint64_t(size), size, collectives_of("direct"), is_short() ? 6 : 12));
}

TEST(the_ring_across_hosts) {
  const int each = is_short() ? 4 : 6;
  for (const World& world : {World{2, ~0, 2}, World{3, ~0, 3}, World{4, ~0, 2}, World{5, 0b01110, 2}})
    play_delayed(300 + std::uint64_t(world.size), world,
                 cases_of(300'000 + std::uint64_t(world.size), world.size, collectives_of("ring"), each));
}

// A pass of the ring takes three blocks of each chunk, and the staged algorithms use the same memory again
// for the third block. The cases have these lengths, and one element less and more.
TEST(where_long_buffers_are_cut) {
  using enum Collective;
  for (const std::string family : {"ring", "staged"})
    for (const int size : {2, 3, 5}) {
      if (is_short() && size == 5) continue;
      const auto n = std::size_t(size), block = 128 * 1024 / size_of(Dtype::float64);
      std::vector<Case> cases;
      for (const std::size_t more : {0, 1, 2}) {
        const auto add = [&](Collective collective, int root, std::size_t count) {
          const auto seed = cases.size();
          cases.push_back(
              {collective, Dtype::float64, ReduceOp::max, root, count + more - 1, more, seed % 2 == 0, seed});
        };
        add(all_reduce, -1, 3 * block * n);
        add(all_reduce, -1, 4 * block);
        add(all_gather, -1, 3 * block);
        add(reduce_scatter, -1, 3 * block);
        add(broadcast, 1, 6 * block);
      }
      play_delayed(400 + std::uint64_t(size), {size, family == "staged" ? 0 : ~0, 1, ask_for(family)}, cases);
    }
}

TEST(forked_ranks) {
  const int each = is_short() ? 4 : 6;
  for (const auto& family : families())
    for (const int mapped : {~0, 0b101}) {
      FileStore store;
      const World world{3, mapped, 1, ask_for(family)};
      const auto cases = cases_of(500'000, world.size, collectives_of(family), each);
      run_processes(world.size, [&](int rank) {
        as_rank(store, world, rank, memory_for_all(cases, world.size),
                [&](Communicator& communicator, std::byte* memory) {
                  DelayedCommunicator delayed(communicator, 500);
                  for (const auto& c : cases) play_and_check(delayed, c, memory);
                });
      });
    }
}

TEST(several_communicators_at_once_between_threads) {
  std::deque<MemoryStore> stores(overlapping_groups().size());
  run_threads(kRanks, [&](int rank) { work_in_all_groups(stores, rank); });
}

TEST(several_communicators_at_once_between_processes) {
  std::deque<FileStore> stores(overlapping_groups().size());
  run_processes(kRanks, [&](int rank) { work_in_all_groups(stores, rank); });
}

TEST_MAIN
