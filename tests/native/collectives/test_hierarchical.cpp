// The hierarchical all_reduce over pretended hosts: which calls it gets, what it computes, and what happens
// when memory is not mapped, a rank dies, or ranks choose differently.
#include <string>
#include <vector>

#include "csrc_pg/collectives/selector.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

constexpr int kAll = ~0;

Case long_case(std::size_t count, bool in_place, ReduceOp op = ReduceOp::sum, Dtype dtype = Dtype::float32) {
  return {Collective::all_reduce, dtype, op, -1, count, 0, in_place, count};
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

}  // namespace

TEST(it_is_chosen_where_it_can_be_used) {
  CHECK_EQ(choice_for({4, kAll, 2}, 1 << 20), kMapAcrossHosts ? "hierarchical" : "ring");
  CHECK_EQ(choice_for({6, kAll, 3}, 8192), kMapAcrossHosts ? "hierarchical" : "ring");
  CHECK_EQ(choice_for({4, kAll, 2, "all_reduce:ring"}, 1 << 20), "ring");
  CHECK_EQ(choice_for({4, kAll, 2}, 1000), "ring");     // too short
  CHECK_EQ(choice_for({5, kAll, 2}, 1 << 20), "ring");  // uneven hosts
  CHECK_EQ(choice_for({3, kAll, 3}, 1 << 20), "ring");  // one rank on each host
  CHECK_EQ(choice_for({4, 0, 2}, 1 << 20), "ring");     // no memory was handed over
}

TEST(every_dtype_and_op) {
  for (const World& world : {World{4, kAll, 2}, World{6, kAll, 3}}) {
    std::vector<Case> cases;
    for (const auto dtype : reference::kDtypes)
      for (const auto op : reference::kOps)
        if (reference::has_meaning(dtype, op))
          cases.push_back(long_case(40'007 + cases.size(), cases.size() % 2 == 0, op, dtype));
    play_all(world, cases);
  }
}

TEST(buffers_of_many_passes_and_many_layouts) {
  for (const World& world : {World{4, kAll, 2}, World{6, kAll, 2}, World{6, kAll, 3}, World{8, kAll, 4}}) {
    play_all(world, {long_case(2'000'003, true), long_case(2'000'003, false), long_case(8'192, true),
                     long_case(8'193, false), long_case(1'000'001, true, ReduceOp::avg, Dtype::bfloat16),
                     long_case(500'001, false, ReduceOp::premul_sum, Dtype::float16)});
  }
}

TEST(short_buffers_where_it_is_asked_for) {
  for (const World& world :
       {World{4, kAll, 2, "all_reduce:hierarchical"}, {6, kAll, 3, "all_reduce:hierarchical"}}) {
    std::vector<Case> cases;
    for (std::size_t count = 0; count < 40; ++count) cases.push_back(long_case(count, count % 2 == 0));
    play_all(world, cases);
  }
}

// What a rank has handed over is known beforehand, and where its buffer lies is not. One rank whose buffer
// lies elsewhere turns all hosts to the ring.
TEST(memory_of_both_kinds) {
  for (const int mapped : {0b0101, 0b0111, 0b1110, 0b0001})
    play_all({4, mapped, 2}, {long_case(100'003, true), long_case(300'001, false), long_case(10, true)});
}

TEST(the_bits_are_the_same_on_every_rank_and_every_time) {
  MemoryStore store;
  const World world{6, kAll, 3};
  const Case c = long_case(200'003, false);
  std::vector<std::vector<std::byte>> outputs(std::size_t(world.size));
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, memory_for(c, world.size),
            [&](Communicator& communicator, std::byte* memory) {
              outputs[std::size_t(rank)] = play(communicator, c, memory);
              for (int again = 0; again < 3; ++again)
                CHECK(play(communicator, c, memory) == outputs[std::size_t(rank)]);
            });
  });
  for (const auto& output : outputs) CHECK(output == outputs[0]);
}

TEST(a_rank_that_dies_is_named_on_all_hosts) {
  for (const int victim : {0, 3}) {
    FileStore store;
    const World world{4, kAll, 2};
    const Case c = long_case(500'003, true);
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

// Hosts compare what they have chosen before anything is sent round the rings across them. Two pairs of
// neighbours may find the difference at the same time, so ranks may name either pair.
TEST(hosts_that_choose_differently_are_told_so) {
  MemoryStore store;
  run_threads(4, [&](int rank) {
    World world{4, kAll, 2};
    if (rank % 2 == 1) world.algorithms = "all_reduce:ring";
    RankMemory memory(kMapAcrossHosts, 1 << 20);
    as_member(store, world, rank, memory.regions(), [&](Communicator& communicator) {
      run(communicator, {Collective::barrier}, Deadline::in(kLimit));  // all ranks have joined
      if (!kMapAcrossHosts) return;                                    // every rank would choose the ring
      const Error error = error_of([&] { play(communicator, long_case(50'000, true), memory.base()); });
      CHECK(error.code() == ErrorCode::mismatch);
      check_contains(error.what(), "chose different algorithms for all_reduce(float32, 50000 elements, SUM)");
      check_contains(error.what(), "VCCL_ALGO must be the same on every rank");
    });
  });
}

TEST_MAIN
