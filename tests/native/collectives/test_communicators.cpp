// Runs the algorithms on real communicators, with threads as ranks. Memory is mapped, staged, or either by
// rank; there is one host, or the ranks pretend to be on several.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/collectives/reference.hpp"
#include "tests/native/collectives/world.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;
using reference::Case;

TEST(mapped_memory) {
  for (int size = 1; size <= 5; ++size) play_random(10 + std::uint64_t(size), {size, ~0, 1}, 25);
}

TEST(staged_memory) {
  for (int size = 1; size <= 5; ++size) play_random(20 + std::uint64_t(size), {size, 0, 1}, 25);
}

TEST(mapped_beside_staged_memory) {
  for (int size = 2; size <= 4; ++size) play_random(30 + std::uint64_t(size), {size, 0b0101, 1}, 25);
}

TEST(hosts_of_one_rank) {
  for (int size = 2; size <= 3; ++size) play_random(40 + std::uint64_t(size), {size, ~0, size}, 25);
}

TEST(hosts_of_two_ranks) {
  play_random(51, {4, ~0, 2}, 25);
  play_random(52, {5, 0b01110, 2}, 25);
}

TEST(long_buffers) {
  for (const int hosts : {1, 2})
    play_all({3, ~0, hosts},
             {{Collective::all_reduce, Dtype::float32, ReduceOp::sum, -1, 2'000'003, 3, true, 1},
              {Collective::all_reduce, Dtype::float16, ReduceOp::avg, -1, 2'000'003, 0, false, 2},
              {Collective::all_gather, Dtype::int64, ReduceOp::sum, -1, 300'001, 0, true, 3},
              {Collective::broadcast, Dtype::float64, ReduceOp::sum, 1, 700'001, 5, false, 4},
              {Collective::reduce_scatter, Dtype::float32, ReduceOp::premul_sum, -1, 400'003, 1, true, 5},
              {Collective::reduce_scatter, Dtype::bfloat16, ReduceOp::avg, -1, 400'003, 0, false, 6, true},
              {Collective::reduce, Dtype::float32, ReduceOp::max, 2, 700'001, 0, true, 7},
              {Collective::gather, Dtype::int16, ReduceOp::sum, 0, 400'001, 0, false, 8},
              {Collective::scatter, Dtype::complex64, ReduceOp::sum, 1, 200'001, 0, false, 9},
              {Collective::all_to_all, Dtype::float32, ReduceOp::sum, -1, 300'001, 2, false, 10, true}});
}

TEST(the_same_bits_again) {
  MemoryStore store;
  const Case c{Collective::all_reduce, Dtype::float32, ReduceOp::sum, -1, 100'003, 0, true, 9};
  const World world{4, ~0, 1};
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, memory_for(c, world.size),
            [&](Communicator& communicator, std::byte* memory) {
              const auto once = play(communicator, c, memory);
              for (int i = 0; i < 5; ++i) CHECK(play(communicator, c, memory) == once);
            });
  });
}

// A barrier that a rank leaves too early would sooner or later let it read a count that is too small.
TEST(barriers_wait_for_everybody) {
  for (const World& world : {World{4, ~0, 1}, World{3, ~0, 3}, World{4, ~0, 2}}) {
    MemoryStore store;
    std::atomic<int> arrived{0};
    run_threads(world.size, [&](int rank) {
      as_rank(store, world, rank, 0, [&](Communicator& communicator, std::byte*) {
        for (int round = 1; round <= 100; ++round) {
          arrived.fetch_add(1, std::memory_order_relaxed);
          run(communicator, {Collective::barrier}, Deadline::in(kLimit));
          CHECK(arrived.load(std::memory_order_relaxed) >= round * world.size);
        }
      });
    });
  }
}

TEST(refusals_leave_the_group_whole) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    as_rank(store, {2, ~0, 1}, rank, 4096, [&](Communicator& communicator, std::byte* memory) {
      const Call no_mean{Collective::all_reduce, Dtype::boolean, ReduceOp::avg, -1, 8, memory, memory};
      const Call no_root{Collective::broadcast, Dtype::int8, ReduceOp::sum, 2, 8, memory, memory};
      CHECK_THROWS(run(communicator, no_mean, Deadline::in(kLimit)), Error);
      CHECK_THROWS(run(communicator, no_root, Deadline::in(kLimit)), Error);
      CHECK(!communicator.failed());
      const Case c{Collective::all_reduce, Dtype::int32, ReduceOp::max, -1, 77, 0, true, 5};
      play_and_check(communicator, c, memory);
    });
  });
}

// Runs every pair of different calls, the first of them on rank 0.
TEST(different_calls_are_an_error_on_every_rank) {
  using enum Collective;
  const std::size_t some[] = {3, 13}, others[] = {13, 3};
  const Call calls[] = {{all_reduce, Dtype::float32, ReduceOp::sum, -1, 8},
                        {all_reduce, Dtype::int32, ReduceOp::sum, -1, 8},
                        {all_reduce, Dtype::float32, ReduceOp::max, -1, 8},
                        {all_reduce, Dtype::float32, ReduceOp::sum, -1, 9},
                        {broadcast, Dtype::float32, ReduceOp::sum, 0, 8},
                        {broadcast, Dtype::float32, ReduceOp::sum, 1, 8},
                        {all_gather, Dtype::float32, ReduceOp::sum, -1, 8},
                        {reduce_scatter, Dtype::float32, ReduceOp::sum, -1, 8},
                        {reduce_scatter, Dtype::float32, ReduceOp::premul_sum, -1, 8},
                        {reduce, Dtype::float32, ReduceOp::sum, 0, 8},
                        {gather, Dtype::float32, ReduceOp::sum, 0, 8},
                        {scatter, Dtype::float32, ReduceOp::sum, 0, 8},
                        {all_to_all, Dtype::float32, ReduceOp::sum, -1, 8},
                        {.collective = all_gather, .dtype = Dtype::float32, .output_counts = some},
                        {.collective = all_gather, .dtype = Dtype::float32, .output_counts = others},
                        {.collective = reduce_scatter, .dtype = Dtype::float32, .input_counts = some},
                        {barrier}};
  for (const auto& ours : calls)
    for (const auto& theirs : calls) {
      if (&ours == &theirs) continue;
      MemoryStore store;
      run_threads(2, [&](int rank) {
        as_rank(store, {2, ~0, 1}, rank, 4096, [&](Communicator& communicator, std::byte* memory) {
          Call call = rank == 0 ? ours : theirs;
          call.output = memory;
          call.input = memory + 2048;
          const Error error = error_of([&] { run(communicator, call, Deadline::in(kLimit)); });
          CHECK_EQ(to_string(error.code()), std::string("mismatch"));
        });
      });
    }
}

TEST(counts_that_are_equal_are_the_same_call) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    as_rank(store, {2, ~0, 1}, rank, 0, [&](Communicator& communicator, std::byte*) {
      const std::vector<int> input(6, rank + 1);
      std::vector<int> gathered(6), reduced(3);
      const std::size_t counts[] = {3, 3};
      Call gather{Collective::all_gather, Dtype::int32, ReduceOp::sum, -1, 3, input.data(), gathered.data()};
      if (rank == 0) gather.output_counts = counts;
      run(communicator, gather, Deadline::in(kLimit));
      CHECK((gathered == std::vector<int>{1, 1, 1, 2, 2, 2}));
      Call reduce{
          Collective::reduce_scatter, Dtype::int32, ReduceOp::sum, -1, 3, input.data(), reduced.data()};
      if (rank == 1) reduce.input_counts = counts;
      run(communicator, reduce, Deadline::in(kLimit));
      CHECK((reduced == std::vector<int>{3, 3, 3}));
    });
  });
}

TEST(splits_that_disagree_are_an_error_on_every_rank) {
  for (const int hosts : {1, 2, 3}) {
    MemoryStore store;
    run_threads(3, [&](int rank) {
      as_rank(store, {3, ~0, hosts}, rank, 4096, [&](Communicator& communicator, std::byte* memory) {
        std::size_t sent[] = {1, 2, 3}, expected[] = {1, 1, 1};
        for (auto& count : expected) count = std::size_t(rank) + 1;
        if (rank == 2) expected[1] = 7;
        const Call call{.collective = Collective::all_to_all,
                        .input = memory,
                        .output = memory + 2048,
                        .input_counts = sent,
                        .output_counts = expected};
        const Error error = error_of([&] { run(communicator, call, Deadline::in(kLimit)); });
        CHECK_EQ(to_string(error.code()), std::string("mismatch"));
        check_contains(error.what(), "rank 1 sends 3 elements to rank 2, which expects 7");
      });
    });
  }
}

TEST(forked_ranks) {
  for (const int hosts : {1, 2}) {
    FileStore store;
    const World world{3, 0b101, hosts};
    const auto cases = reference::random_cases(77, world.size, 40, 1 << 19);
    std::size_t most = 0;
    for (const auto& c : cases) most = std::max(most, memory_for(c, world.size));
    run_processes(world.size, [&](int rank) {
      as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
        for (const auto& c : cases) play_and_check(communicator, c, memory);
      });
    });
  }
}

TEST_MAIN
