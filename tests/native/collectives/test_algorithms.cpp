// Runs every algorithm of the table, asked for by name, and checks its results and that it was the one that
// ran.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "csrc_pg/collectives/algorithm.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/families.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

// Returns cases of every size, some of which are long enough for what the algorithms do with long buffers
// only.
std::vector<Case> direct_cases(std::uint64_t seed, int size) {
  using enum Collective;
  auto cases = reference::random_cases(seed, size, 30, 1 << 18);
  const std::vector<Case> long_ones{
      {all_reduce, Dtype::float32, ReduceOp::sum, -1, 300'007, 3, true, 1},
      {all_reduce, Dtype::bfloat16, ReduceOp::premul_sum, -1, 300'007, 0, false, 2},
      {all_gather, Dtype::int64, ReduceOp::sum, -1, 600'001, 0, true, 3, true},
      {all_gather, Dtype::float32, ReduceOp::sum, -1, 1'500'001, 0, false, 4},
      {broadcast, Dtype::float64, ReduceOp::sum, size - 1, 300'001, 5, false, 5},
      {reduce_scatter, Dtype::float32, ReduceOp::avg, -1, 600'003, 1, true, 6, true},
      {reduce, Dtype::float32, ReduceOp::max, 0, 300'001, 0, true, 7},
      {gather, Dtype::float32, ReduceOp::sum, size - 1, 300'001, 0, false, 8},
      {scatter, Dtype::float32, ReduceOp::sum, 0, 300'001, 0, true, 9},
      {all_to_all, Dtype::float32, ReduceOp::sum, -1, 300'001, 2, false, 10, true}};
  cases.insert(cases.end(), long_ones.begin(), long_ones.end());
  return cases;
}

// Runs the cases by the direct algorithms, where ranks outnumber cores or not. Returns each rank's outputs.
std::vector<std::vector<std::byte>> play_directly(const World& world, const std::vector<Case>& cases,
                                                  bool oversubscribed) {
  MemoryStore store;
  std::size_t most = 0;
  for (const auto& c : cases) most = std::max(most, memory_for(c, world.size));
  std::vector<std::vector<std::vector<std::byte>>> outputs(std::size_t(world.size));
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
      CHECK_EQ(communicator.all_peers()->oversubscribed(), oversubscribed);
      for (const auto& c : cases) outputs[std::size_t(rank)].push_back(play(communicator, c, memory));
    });
  });
  check_outputs(cases, outputs);
  std::vector<std::vector<std::byte>> all;
  for (auto& of_rank : outputs)
    for (auto& output : of_rank) all.push_back(std::move(output));
  return all;
}

}  // namespace

TEST(every_algorithm_in_mapped_memory) {
  for (const auto& family : families())
    for (const int size : {1, 2, 3, 4, 5, 8})
      play_random(200 + std::uint64_t(size), {size, ~0, 1, ask_for(family)}, size == 8 ? 12 : 30);
}

TEST(every_algorithm_in_staged_memory) {
  for (const auto& family : families())
    for (const int size : {1, 2, 3, 5})
      play_random(300 + std::uint64_t(size), {size, 0, 1, ask_for(family)}, 25);
}

TEST(every_algorithm_where_memory_is_of_both_kinds) {
  for (const auto& family : families())
    for (const int size : {2, 3, 4})
      play_random(400 + std::uint64_t(size), {size, 0b0101, 1, ask_for(family)}, 25);
}

TEST(every_algorithm_asked_for_across_hosts) {
  for (const auto& family : families()) play_random(500, {4, ~0, 2, ask_for(family)}, 15);
}

TEST(every_dtype_and_op_by_every_algorithm) {
  using enum Collective;
  for (const auto& family : families())
    for (const int size : {2, 3}) {
      std::vector<Case> cases;
      for (const auto dtype : reference::kDtypes)
        for (const auto op : reference::kOps) {
          if (!reference::has_meaning(dtype, op)) continue;
          for (const auto collective : {all_reduce, reduce_scatter, reduce}) {
            const auto seed = cases.size();
            const int root = collective == reduce ? int(seed) % size : -1;
            cases.push_back({collective, dtype, op, root, 701, 1, seed % 2 == 0, seed,
                             collective == reduce_scatter && seed % 3 == 0});
          }
        }
      play_all({size, ~0, 1, ask_for(family)}, cases);
    }
}

TEST(long_buffers_by_every_algorithm) {
  using enum Collective;
  for (const auto& family : families())
    play_all({3, ~0, 1, ask_for(family)},
             {{all_reduce, Dtype::float32, ReduceOp::sum, -1, 2'000'003, 3, true, 1},
              {all_reduce, Dtype::bfloat16, ReduceOp::avg, -1, 2'000'003, 0, false, 2},
              {all_gather, Dtype::int64, ReduceOp::sum, -1, 300'001, 0, true, 3, true},
              {broadcast, Dtype::float64, ReduceOp::sum, 1, 700'001, 5, false, 4},
              {reduce_scatter, Dtype::float32, ReduceOp::premul_sum, -1, 400'003, 1, true, 5, true},
              {reduce, Dtype::float32, ReduceOp::max, 2, 700'001, 0, true, 6},
              {gather, Dtype::int16, ReduceOp::sum, 0, 400'001, 0, false, 7},
              {scatter, Dtype::complex64, ReduceOp::sum, 1, 200'001, 0, false, 8},
              {all_to_all, Dtype::float32, ReduceOp::sum, -1, 300'001, 2, false, 9, true}});
}

TEST(one_shot_and_direct_give_the_same_bits) {
  using enum Collective;
  const std::vector<Case> cases{
      {all_reduce, Dtype::float32, ReduceOp::sum, -1, 5'003, 1, true, 1},
      {all_reduce, Dtype::bfloat16, ReduceOp::avg, -1, 5'003, 0, false, 2},
      {reduce, Dtype::float16, ReduceOp::product, 1, 5'003, 0, true, 3},
      {reduce_scatter, Dtype::float32, ReduceOp::premul_sum, -1, 1'003, 0, false, 4}};
  std::map<std::string, std::vector<std::vector<std::byte>>> outputs;
  for (const std::string family : {"oneshot", "direct"}) {
    MemoryStore store;
    const World world{4, ~0, 1, ask_for(family)};
    std::size_t most = 0;
    for (const auto& c : cases) most = std::max(most, memory_for(c, world.size));
    run_threads(world.size, [&](int rank) {
      as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
        for (const auto& c : cases) {
          const auto once = play(communicator, c, memory);
          for (int again = 0; again < 3; ++again) CHECK(play(communicator, c, memory) == once);
          if (rank == 1) outputs[family].push_back(once);
        }
      });
    });
  }
  CHECK(outputs["oneshot"] == outputs["direct"]);
}

// Puts all ranks on one core, whatever machine this is, so that any rank may do a work item.
TEST(direct_algorithms_between_ranks_on_one_core) {
  const std::vector<int> core{cores_of_this_thread()[0]};
  for (const int size : {2, 4, 17}) {
    const auto cases = size == 17 ? reference::random_cases(617, size, 10, 1 << 15)
                                  : direct_cases(600 + std::uint64_t(size), size);
    play_directly({size, ~0, 1, ask_for("direct"), core}, cases, true);
  }
}

// With as many cores as ranks, each rank does its own work item. The results have the same bits as on one
// core.
TEST(direct_algorithms_between_ranks_with_a_core_each) {
  const int cores = std::min(base::UsableCores::of_this_process().count(), 8);
  for (int size = 1; size <= cores; size += size < 4 ? 1 : 4) {
    const auto cases = direct_cases(700 + std::uint64_t(size), size);
    const World free{size, ~0, 1, ask_for("direct")};
    World bound = free;
    bound.cores = {cores_of_this_thread()[0]};
    CHECK(play_directly(free, cases, false) == play_directly(bound, cases, size > 1));
  }
}

TEST(forked_ranks_on_one_core) {
  const std::vector<int> core{cores_of_this_thread()[0]};
  for (const int size : {2, 4}) {
    FileStore store;
    const World world{size, ~0, 1, ask_for("direct"), core};
    const auto cases = direct_cases(800 + std::uint64_t(size), size);
    std::size_t most = 0;
    for (const auto& c : cases) most = std::max(most, memory_for(c, size));
    run_processes(size, [&](int rank) {
      as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
        CHECK(communicator.all_peers()->oversubscribed());
        for (const auto& c : cases) play_and_check(communicator, c, memory);
      });
    });
  }
}

TEST(forked_ranks_with_every_algorithm) {
  for (const auto& family : families())
    for (const int mapped : {~0, 0b101}) {
      FileStore store;
      const World world{3, mapped, 1, ask_for(family)};
      const auto cases = reference::random_cases(78, world.size, 40, 1 << 19);
      std::size_t most = 0;
      for (const auto& c : cases) most = std::max(most, memory_for(c, world.size));
      run_processes(world.size, [&](int rank) {
        as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
          for (const auto& c : cases) play_and_check(communicator, c, memory);
        });
      });
    }
}

// The last block of these buffers has one byte, or is one byte short. Blocks have at most 128, 256 and 512
// KiB.
TEST(staged_pieces_that_end_at_a_boundary) {
  using enum Collective;
  constexpr std::size_t K = 1024;
  for (const int size : {2, 3}) {
    std::vector<Case> cases;
    for (const std::size_t bytes : {128 * K, 256 * K, 512 * K, 1024 * K})
      for (const std::size_t count : {bytes - 1, bytes, bytes + 1})
        for (const Collective collective :
             {all_reduce, reduce_scatter, reduce, broadcast, all_gather, gather, scatter, all_to_all})
          cases.push_back({collective, Dtype::uint8, ReduceOp::sum, has_root(collective) ? size - 1 : -1,
                           count, 0, count % 2 == 0, cases.size()});
    play_all({size, 0, 1, ask_for("staged")}, cases);
  }
}

TEST_MAIN
