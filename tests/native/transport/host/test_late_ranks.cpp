// A rank that is late in an operation of which all others have done their part, and that fails behind it.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/native/check.hpp"
#include "tests/native/transport/cores.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;

namespace {

const Deadline kLater = Deadline::in(Milliseconds(3'600'000));

Announcement nothing(std::uint64_t count) {
  return {.signature = {.count = count}};
}

/// Three ranks begin an operation. Ranks 0 and 2 do `early` in it and end it. Rank 2 leaves, which fails the
/// next operation of rank 0. Then rank 1 does `late` in the first operation, and ends it if `late_ends`.
void behind_the_failure(const std::function<void(Peers&)>& early, const std::function<void(Peers&)>& late,
                        bool late_ends = true) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    const auto communicator = Communicator::create(store, test_config(rank, 3));
    Operation operation(*communicator, nothing(1), kLater);
    Peers& peers = *communicator->all_peers();
    if (rank == 1) {
      while (!communicator->failed()) std::this_thread::sleep_for(Milliseconds(1));
      late(peers);
      if (!late_ends) return;
      operation.finish();
      CHECK_THROWS(Operation(*communicator, nothing(2), kLater), Error);
      return;
    }
    early(peers);
    operation.finish();
    if (rank == 2) return;
    const Error error = error_of([&] { Operation(*communicator, nothing(2), kLater); });
    CHECK(error.code() == ErrorCode::peer_left);
  });
}

}  // namespace

TEST(a_phase_that_all_have_come_to) {
  behind_the_failure([](Peers& peers) { peers.arrive(3); },
                     [](Peers& peers) {
                       peers.await(0, 2);
                       peers.await_all(3);
                     });
}

TEST(work_items_that_are_all_done) {
  const auto claim_all = [](Peers& peers) {
    while (peers.claim_work_item() >= 0) peers.deliver_work_item();
    peers.await_work_items();
  };
  behind_the_failure(claim_all, claim_all);
}

// The rank that failed behind the operation is in a later phase than any of the operation. So nobody knows
// any more whether it had declined.
TEST(whether_a_rank_had_declined_is_lost) {
  const auto late = [](Peers& peers) {
    // Rank 0 withdraws from its second operation right behind the failure's record.
    const Error error = error_of([&] {
      const Deadline patience = Deadline::in(Milliseconds(60'000));
      while (peers.declined(0) && !patience.passed()) std::this_thread::yield();
    });
    CHECK(error.code() == ErrorCode::peer_left);
  };
  behind_the_failure([](Peers& peers) { peers.arrive(Peers::kDeclined); }, late, false);
}

// All ranks share a core, so one of them often sees the begin of the others only when they have failed.
TEST(a_begin_that_all_have_come_to) {
  const std::vector<int> cores = cores_of_this_thread();
  bind_to({cores.front()});
  for (int round = 0; round < 300; ++round) {
    MemoryStore store;
    run_threads(3, [&](int rank) {
      const auto communicator = Communicator::create(store, test_config(rank, 3));
      Operation(*communicator, nothing(1), kLater).finish();
      if (rank == 0) CHECK_THROWS(Operation(*communicator, nothing(2), kLater), Error);
    });
  }
  bind_to(cores);
}

TEST_MAIN
