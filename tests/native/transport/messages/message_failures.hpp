// Failures with messages under way, for ranks of one host and of several. `join` makes a rank's communicator,
// and says so which ranks share a host.
#pragma once

#include <random>
#include <string>
#include <thread>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/rounds.hpp"

namespace vccl {

/// Kills one of three ranks in the midst of random traffic, `rounds` times. `join` is given the round and the
/// memory of the rank's card, too.
template <class Join>
void kill_in_the_midst(int rounds, unsigned seed_of_times, Join join) {
  std::mt19937 random(seed_of_times);
  for (int round = 0; round < rounds; ++round) {
    FileStore store;
    const int victim = round % 3;
    Processes processes(3, [&](int rank) {
      TestRegion region(std::size_t{512} << 20);
      auto c = join(store, rank, round, region);
      store.set("ready/" + std::to_string(rank), "1");
      const Error error = error_of([&] {
        for (std::uint64_t seed = 0;; ++seed) run_traffic(*c, region, plan_traffic(3, 60, seed, false), seed);
      });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "rank " + std::to_string(victim) + " (");
      // Between hosts, the texts name the address of a rank and not its process.
      if (c->host_count() == 1) check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
    });
    for (int rank = 0; rank < 3; ++rank) store.get("ready/" + std::to_string(rank), Deadline::in(kFar));
    usleep(random() % 50'000);
    kill(processes.pid(victim), SIGKILL);
    processes.check_ends(victim);
  }
}

/// One of three ranks aborts the group while each of them sends and receives.
template <class Join>
void abort_in_the_midst(Join join) {
  for (const int aborting : {0, 1}) {
    const Error error = same_error(3, join, [&](Communicator& c) {
      pass_committed(c, 5);  // a rank that is still being made would have the failure there
      std::vector<std::byte> large(100'000);
      std::byte byte{};
      Outcome sent = send(c, (c.rank() + 1) % 3, 5, large);
      Outcome received = receive(c, kAnySource, 6, {&byte, 1});
      std::thread aborter;
      if (c.rank() == aborting) {
        aborter = std::thread([&] {
          usleep(30'000);
          c.abort("the user pressed a button");
        });
      }
      const Error first = error_of([&] { sent.get(); });
      if (aborter.joinable()) aborter.join();
      CHECK_EQ(std::string(error_of([&] { received.get(); }).what()), first.what());
      throw first;
    });
    CHECK(error.code() == ErrorCode::aborted);
    CHECK_EQ(std::string(error.what()),
             "rank " + std::to_string(aborting) + " aborted group test: the user pressed a button");
  }
}

/// Rank 1 of two leaves and says why, while rank 0 waits for a message from it or from anybody.
template <class Join>
void leave_with_a_reason(Join join) {
  for (const int from : {1, kAnySource}) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank);
      std::byte byte{};
      if (rank == 1) {
        send(*c, 0, 4, {&byte, 1}).get();
        c->leave_because("rank 7 died");
        return;
      }
      Outcome in_vain = receive(*c, from, 5, {&byte, 1});
      const Error error = error_of([&] { in_vain.get(); });
      CHECK(error.code() == ErrorCode::peer_left);
      check_contains(
          error.what(),
          "rank 1 left group test (after a failure elsewhere: rank 7 died) while rank 0 waited for ");
      check_contains(error.what(), from == 1 ? "rank 1 to send" : "any source to send");
    });
  }
}

}  // namespace vccl
