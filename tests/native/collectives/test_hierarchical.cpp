// The algorithms that go over the rings of hosts, over pretended hosts with equally and with unequally many
// ranks: which calls they get, what they compute, and what happens when memory is not mapped, a rank dies, or
// ranks choose differently.
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc_pg/collectives/selector.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/families.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

constexpr int kAll = ~0;

Case long_case(std::size_t count, bool in_place, ReduceOp op = ReduceOp::sum, Dtype dtype = Dtype::float32) {
  return {Collective::all_reduce, dtype, op, -1, count, 0, in_place, count};
}

// Hosts with equally many ranks, whose ranks follow each other or do not; with one rank more; with one rank.
const char* const kLayouts[] = {"AABB",   "ABAB", "ABCABC", "AAAB",   "ABBC", "ABACA",
                                "ABBBCC", "AB",   "ABC",    "ABBCDC", "ABCDE"};

World world_of(const std::string& layout, const std::string& algorithms = {}, int mapped = kAll) {
  return {.size = int(layout.size()),
          .mapped = mapped,
          .hosts = int(std::set(layout.begin(), layout.end()).size()),
          .algorithms = algorithms,
          .layout = layout};
}

// Returns what every rank chooses for an all_reduce of so many float32.
std::string choice_for(const World& world, std::size_t count) {
  MemoryStore store;
  std::vector<std::string> names(std::size_t(world.size));
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, 0, [&](Communicator& communicator, std::byte*) {
      const Call call{Collective::all_reduce, Dtype::float32, ReduceOp::sum, -1, count};
      names[std::size_t(rank)] = choose_algorithms(communicator, call).first->name;
    });
  });
  for (const std::string& name : names) CHECK_EQ(name, names[0]);
  return names[0];
}

// Waits until all ranks have joined: a rank that still does would raise the error that others are about to
// find.
void wait_for_all(Store& store, int rank, int size) {
  store.set("through/" + std::to_string(rank), "");
  for (int other = 0; other < size; ++other)
    store.get("through/" + std::to_string(other), Deadline::in(kLimit));
}

// Returns random cases of the collectives that a family has, and that it can do between hosts.
std::vector<Case> cases_of(const std::string& family, std::uint64_t seed, int size, int how_many,
                           std::size_t max_bytes) {
  auto cases = reference::random_cases(seed, size, how_many, max_bytes);
  std::erase_if(cases, [&](const Case& c) { return !collectives_of(family).contains(c.collective); });
  return cases;
}

// Plays the cases on all ranks, each of which must choose the family for all of them.
void play_with(const std::string& family, const World& world, const std::vector<Case>& cases) {
  World asked = world;
  asked.algorithms = ask_for(family);
  asked.maps_across = true;
  MemoryStore store;
  run_threads(world.size, [&](int rank) {
    as_rank(store, asked, rank, 0, [&](Communicator& communicator, std::byte*) {
      for (const Case& c : cases) {
        const CaseCall prepared(c, world.size, rank);
        CHECK_EQ(std::string(choose_algorithms(communicator, prepared.call).first->name), family);
      }
    });
  });
  play_all(asked, cases);
}

}  // namespace

TEST(it_is_chosen_where_it_can_be_used) {
  CHECK_EQ(choice_for({4, kAll, 2}, 1 << 20), kMapAcrossHosts ? "hierarchical" : "ring");
  CHECK_EQ(choice_for(world_of("AAAB"), 1 << 20), kMapAcrossHosts ? "hierarchical" : "ring");
  CHECK_EQ(choice_for(world_of("ABBC"), 1 << 20), kMapAcrossHosts ? "hierarchical" : "ring");
  CHECK_EQ(choice_for({4, kAll, 2, "all_reduce:ring"}, 1 << 20), "ring");
  CHECK_EQ(choice_for({4, kAll, 2}, 10), "oneshot");
  CHECK_EQ(choice_for({4, 0, 2}, 10), "oneshot");
  CHECK_EQ(choice_for({4, 0, 2}, 1 << 20), "ring");  // no memory was handed over
  CHECK_EQ(choice_for({4, 0, 2, "all_reduce:hierarchical"}, 1 << 20), "ring");
}

TEST(every_dtype_and_op) {
  for (const char* layout : {"ABAB", "AAAB", "AB"}) {
    std::vector<Case> cases;
    for (const auto dtype : reference::kDtypes)
      for (const auto op : reference::kOps)
        for (const auto collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce})
          if (reference::has_meaning(dtype, op)) {
            Case c = long_case(4'007 + cases.size(), cases.size() % 2 == 0, op, dtype);
            c.collective = collective;
            if (has_root(collective)) c.root = int(cases.size() % 2);
            cases.push_back(c);
          }
    play_with("hierarchical", world_of(layout), cases);
  }
}

TEST(every_collective_in_every_layout) {
  for (const char* layout : kLayouts) {
    const World world = world_of(layout);
    const std::uint64_t seed = 100 + std::hash<std::string>()(layout) % 100;
    play_with("hierarchical", world, cases_of("hierarchical", seed, world.size, 60, 1 << 20));
  }
}

TEST(buffers_of_many_passes) {
  for (const char* layout : {"ABAB", "AAAB", "ABCABC"}) {
    const int last = world_of(layout).size - 1;
    using enum Collective;
    play_with("hierarchical", world_of(layout),
              {long_case(2'000'003, true),
               long_case(2'000'003, false),
               long_case(8'192, true),
               long_case(1'000'001, true, ReduceOp::avg, Dtype::bfloat16),
               long_case(500'001, false, ReduceOp::premul_sum, Dtype::float16),
               {all_gather, Dtype::int64, ReduceOp::sum, -1, 300'001, 0, true, 3},
               {broadcast, Dtype::float64, ReduceOp::sum, last, 700'001, 5, false, 4},
               {reduce_scatter, Dtype::float32, ReduceOp::premul_sum, -1, 400'003, 1, true, 5},
               {reduce_scatter, Dtype::bfloat16, ReduceOp::avg, -1, 400'003, 0, false, 6, true},
               {reduce, Dtype::float32, ReduceOp::max, last, 700'001, 0, true, 7},
               {gather, Dtype::int16, ReduceOp::sum, 0, 400'001, 0, false, 8},
               {scatter, Dtype::complex64, ReduceOp::sum, 1, 200'001, 0, false, 9},
               {all_to_all, Dtype::float32, ReduceOp::sum, -1, 300'001, 2, false, 10, true}});
  }
}

// Payloads may be as long as the slots of a leader allow, in which the other ranks of its host read them.
TEST(short_buffers_go_with_the_announcement) {
  for (const char* layout : kLayouts)
    for (const int mapped : {kAll, 0}) {
      const World world = world_of(layout, {}, mapped);
      auto cases = cases_of("oneshot", 300 + std::uint64_t(world.size), world.size, 60, 2'048);
      for (const std::size_t count : {252, 253, 8'192})
        cases.push_back(long_case(count, true, ReduceOp::premul_sum));
      std::erase_if(cases, [](const Case& c) { return c.collective == Collective::all_to_all && c.uneven; });
      play_with("oneshot", world, cases);
    }
}

// What a rank has handed over is known beforehand, and where its buffer lies is not. One rank whose buffer
// lies elsewhere turns all hosts to the ring.
TEST(memory_of_both_kinds) {
  for (const char* layout : {"ABAB", "AAAB", "ABBC"})
    for (const int mapped : {0b0101, 0b0111, 0b1110, 0b0001}) {
      const World world = world_of(layout, ask_for("hierarchical"), mapped);
      play_all(world, {long_case(100'003, true), long_case(300'001, false), long_case(10, true)});
      play_all(world, cases_of("hierarchical", 7, world.size, 20, 1 << 17));
    }
}

TEST(the_bits_are_the_same_on_every_rank_and_every_time) {
  for (const World& world : {world_of("ABCABC"), world_of("AABAB"), world_of("ABBCD")})
    for (const char* family : {"hierarchical", "oneshot"}) {
      MemoryStore store;
      World asked = world;
      asked.algorithms = ask_for(family);
      asked.maps_across = true;
      const Case c = long_case(family == std::string("oneshot") ? 2'003 : 200'003, false);
      std::vector<std::vector<std::byte>> outputs(std::size_t(world.size));
      run_threads(world.size, [&](int rank) {
        as_rank(store, asked, rank, memory_for(c, world.size),
                [&](Communicator& communicator, std::byte* memory) {
                  outputs[std::size_t(rank)] = play(communicator, c, memory);
                  for (int again = 0; again < 3; ++again)
                    CHECK(play(communicator, c, memory) == outputs[std::size_t(rank)]);
                });
      });
      for (const auto& output : outputs) CHECK(output == outputs[0]);
    }
}

TEST(barriers_wait_for_all_hosts) {
  for (const char* layout : kLayouts) {
    const World world = world_of(layout);
    MemoryStore store;
    std::atomic<int> arrived{0};
    run_threads(world.size, [&](int rank) {
      as_rank(store, world, rank, 0, [&](Communicator& communicator, std::byte*) {
        for (int round = 1; round <= 50; ++round) {
          arrived.fetch_add(1, std::memory_order_relaxed);
          run(communicator, {Collective::barrier}, Deadline::in(kLimit));
          CHECK(arrived.load(std::memory_order_relaxed) >= round * world.size);
        }
      });
    });
  }
}

TEST(splits_that_disagree_are_an_error_on_every_rank) {
  for (const char* layout : {"AAB", "AABB", "ABC"}) {
    const World world = world_of(layout, "all_to_all:hierarchical");
    MemoryStore store;
    run_threads(world.size, [&](int rank) {
      RankMemory memory(kMapAcrossHosts, 4096);
      as_member(store, world, rank, memory.regions(), [&](Communicator& communicator) {
        std::vector<std::size_t> sent, expected(std::size_t(world.size), std::size_t(rank) + 1);
        for (int other = 1; other <= world.size; ++other) sent.push_back(std::size_t(other));
        if (rank == 2) expected[1] = 7;
        const Call call{.collective = Collective::all_to_all,
                        .input = memory.base(),
                        .output = memory.base() + 2048,
                        .input_counts = sent,
                        .output_counts = expected};
        const Error error = error_of([&] { run(communicator, call, Deadline::in(kLimit)); });
        CHECK_EQ(to_string(error.code()), std::string("mismatch"));
        check_contains(error.what(), "rank 1 sends 3 elements to rank 2, which expects 7");
      });
    });
  }
}

TEST(a_rank_that_dies_is_named_on_all_hosts) {
  for (const auto& [layout, victim] :
       {std::pair("ABAB", 0), {"ABAB", 3}, {"AAAB", 2}, {"AAAB", 3}, {"ABCD", 2}})
    for (const char* family : {"hierarchical", "oneshot"}) {
      FileStore store;
      const World world = world_of(layout, ask_for(family));
      const Case c = long_case(family == std::string("oneshot") ? 503 : 500'003, true);
      Processes processes(world.size, [&](int rank) {
        RankMemory memory(true, memory_for(c, world.size));
        as_member(store, world, rank, memory.regions(), [&](Communicator& communicator) {
          play(communicator, c, memory.base());
          store.set("through/" + std::to_string(rank), "");
          const Error error = error_of([&] {
            while (true) play(communicator, c, memory.base());
          });
          CHECK(error.code() == ErrorCode::peer_dead);
          check_contains(error.what(), "rank " + std::to_string(victim));
        });
      });
      for (int rank = 0; rank < world.size; ++rank)
        store.get("through/" + std::to_string(rank), Deadline::in(kLimit));
      processes.kill_and_wait(victim);
      processes.check_ends(victim);
    }
}

// Hosts compare what they have chosen before they use what came from each other. Two pairs of neighbours may
// find the difference at the same time, so ranks may name either pair. A rank that has its error may still be
// read by a neighbour on the ring that does not have it yet, so memory outlives all ranks, which are threads
// of one process here.
TEST(hosts_that_choose_differently_are_told_so) {
  for (const char* layout : {"ABAB", "AAAB", "AAABBB", "AB", "ABCD"})
    for (const Collective collective : {Collective::all_reduce, Collective::broadcast, Collective::barrier}) {
      // The root waits for its neighbours only, and so may have done its part when B differs.
      if (has_root(collective) && std::string(layout) == "ABCD") continue;
      MemoryStore store;
      const int size = world_of(layout).size;
      std::vector<std::unique_ptr<RankMemory>> memories;
      for (int rank = 0; rank < size; ++rank)
        memories.push_back(std::make_unique<RankMemory>(kMapAcrossHosts, 1 << 20));
      run_threads(size, [&](int rank) {
        World world = world_of(layout);
        world.algorithms = std::string(to_string(collective)) + (layout[rank] == 'B' ? ":ring" : ":oneshot");
        RankMemory& memory = *memories[std::size_t(rank)];
        as_member(store, world, rank, memory.regions(), [&](Communicator& communicator) {
          wait_for_all(store, rank, size);
          Case c = long_case(50, true);
          c.collective = collective;
          if (has_root(collective)) c.root = size - 1;
          const Error error = error_of([&] { play(communicator, c, memory.base()); });
          CHECK_EQ(to_string(error.code()), std::string("mismatch"));
          check_contains(error.what(),
                         "chose different algorithms for " + std::string(to_string(collective)));
          check_contains(error.what(), "VCCL_ALGO must be the same on every rank");
        });
      });
    }
}

TEST(calls_that_differ_between_hosts_are_told_so) {
  for (const char* layout : {"AABB", "AAAB", "AAABBB", "AB", "ABCD"})
    for (const char* family : {"hierarchical", "oneshot"}) {
      MemoryStore store;
      const World world = world_of(layout, ask_for(family));
      run_threads(world.size, [&](int rank) {
        RankMemory memory(kMapAcrossHosts, 1 << 16);
        as_member(store, world, rank, memory.regions(), [&](Communicator& communicator) {
          wait_for_all(store, rank, world.size);
          const Case c = long_case(layout[rank] == 'A' ? 100 : 101, true);
          const Error error = error_of([&] { play(communicator, c, memory.base()); });
          CHECK_EQ(to_string(error.code()), std::string("mismatch"));
          check_contains(error.what(), "all_reduce(float32, 100 elements, SUM)");
          check_contains(error.what(), "all_reduce(float32, 101 elements, SUM)");
        });
      });
    }
}

TEST_MAIN
