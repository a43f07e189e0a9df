// What texts call ranks of a group whose numbers in the job are others.
#include "transport/rank_names.hpp"

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

const std::string kTwo = "rank 2 (0 of mesh_tp, ranks 2, 5)", kFive = "rank 5 (1 of mesh_tp, ranks 2, 5)";

CommunicatorConfig subgroup(int rank, const char* hosts = "aa") {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, 2);
  config.name = "mesh_tp";
  config.global_ranks = {2, 5};
  config.host_id = std::string(1, hosts[rank]);
  return config;
}

TEST(equal_numbers_are_given_once) {
  for (const RankNames& names : {RankNames(), RankNames("g", {0, 1, 2}), RankNames("g", {})}) {
    CHECK_EQ(names.rank(1), "rank 1");
    CHECK_EQ(names.rank(1, "pid 7"), "rank 1 (pid 7)");
    CHECK_EQ(names.number(2), "2");
    CHECK_EQ(names.ranks(std::vector{0, 2}), "ranks 0, 2");
    CHECK_EQ(names.ranks(std::vector{2}), "rank 2");
  }
}

TEST(other_numbers_are_given_both) {
  const RankNames names("mesh_tp", {0, 5});
  CHECK_EQ(names.rank(0), "rank 0");
  CHECK_EQ(names.rank(1), "rank 5 (1 of mesh_tp, ranks 0, 5)");
  CHECK_EQ(names.rank(1, "pid 7"), "rank 5 (1 of mesh_tp, ranks 0, 5; pid 7)");
  CHECK_EQ(names.number(0), "0");
  CHECK_EQ(names.number(1), "5 (1 of mesh_tp)");
  CHECK_EQ(names.ranks(std::vector{0, 1}), "ranks 0, 5 (0, 1 of mesh_tp)");
  CHECK_EQ(names.numbers(std::vector{0, 1}), "0, 5");
  CHECK_EQ(RankEnd(RankEnd::How::died, 7).text(names, 1), "rank 5 (1 of mesh_tp, ranks 0, 5; pid 7) died");
}

TEST(a_group_without_a_name) {
  CHECK_EQ(RankNames("2", {1, 3}).rank(1), "rank 3 (1 of group 2, ranks 1, 3)");
  CHECK_EQ(RankNames("2", {1, 3}).number(1), "3 (1 of group 2)");
  CHECK_EQ(RankNames("2", {1, 3}).of_group(1), "rank 3 (1 of group 2, ranks 1, 3)");
  CHECK_EQ(RankNames("2", {0, 1}).of_group(1), "rank 1 of group 2");
  CHECK_EQ(RankNames("tp", {}).of_group(1), "rank 1 of group tp");
}

TEST(numbers_outside_of_the_group_stay) {
  const RankNames names("mesh_tp", {0, 5});
  for (const int rank : {-1, 2}) {
    CHECK_EQ(names.rank(rank), "rank " + std::to_string(rank));
    CHECK_EQ(names.number(rank), std::to_string(rank));
  }
}

TEST(a_large_group_is_not_listed) {
  std::vector<std::uint64_t> ranks;
  for (std::uint64_t i = 0; i < 100; ++i) ranks.push_back(2 * i);
  CHECK_EQ(RankNames("dp", ranks).rank(3), "rank 6 (3 of dp, ranks 0, 2, 4, 6, ... 198 (100 ranks))");
}

// One of the ranks goes, on one host and on two.
TEST(a_rank_that_leaves) {
  for (const char* hosts : {"aa", "ab"}) {
    MemoryStore store;
    std::string text;
    run_threads(2, [&](int rank) {
      auto c = Communicator::create(store, subgroup(rank, hosts));
      if (rank == 0) return;
      text =
          error_of([&] {
            Operation operation(*c, {.collective = 1, .count = 4}, {}, Deadline::in(Milliseconds(100'000)));
            c->left().take_committed(1);
          }).what();
    });
    check_contains(text, kTwo + " left group mesh_tp");
    check_contains(text, kFive);
  }
}

TEST(calls_that_differ) {
  for (const char* hosts : {"aa", "ab"}) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = Communicator::create(store, subgroup(rank, hosts));
      const std::string text =
          error_of([&] {
            Operation operation(*c, {.collective = 1, .count = 4u + unsigned(rank)}, {},
                                Deadline::in(Milliseconds(100'000)));
            operation.finish();
            c->check();
            Operation next(*c, {.collective = 1, .count = 4u}, {}, Deadline::in(Milliseconds(100'000)));
            next.finish();
          }).what();
      check_contains(text, kTwo + " called test_1(4 elements)");
      check_contains(text, "but " + kFive + " called test_1(5 elements)");
    });
  }
}

TEST(a_rank_that_does_not_come) {
  MemoryStore store;
  CommunicatorConfig config = subgroup(0);
  config.timeout = Milliseconds(300);
  const std::string text = error_of([&] { Communicator::create(store, config); }).what();
  check_contains(text, "rank 5 (1 of mesh_tp) did not join group mesh_tp");
  check_contains(text, "according to " + kTwo);
}

TEST(a_rank_that_keeps_others_waiting) {
  for (const char* hosts : {"aa", "ab"}) {
    MemoryStore store;
    std::atomic<bool> over{false};
    run_threads(2, [&](int rank) {
      auto c = Communicator::create(store, subgroup(rank, hosts));
      if (rank == 1) {
        while (!over) std::this_thread::sleep_for(Milliseconds(5));
        return;
      }
      const std::string text =
          error_of([&] {
            Operation operation(*c, {.collective = 1, .count = 4}, {}, Deadline::in(Milliseconds(300)));
            c->left().take_committed(1);
          }).what();
      over = true;
      check_contains(text, kTwo + " waited 300 ms for ");
      check_contains(text, "rank 5 (1 of mesh_tp");
    });
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
