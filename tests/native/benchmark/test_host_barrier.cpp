// The barrier of measurements: nobody is let through before everybody has come, and nobody is forgotten.
#include <signal.h>

#include <new>
#include <random>

#include "csrc_pg/benchmark/host_barrier.hpp"
#include "tests/native/transport/harness.hpp"

namespace vccl {
namespace {

constexpr auto kNoLook = std::chrono::nanoseconds(0);
constexpr auto kLook = std::chrono::microseconds(200);

Clock::time_point later() {
  return Clock::now() + std::chrono::seconds(60);
}

struct Page {
  HostBarrier::Words words;
  std::atomic<int> come[8];
};

/// Everybody comes late now and then, and looks or sleeps. A rank that is through has to find that all others
/// have come as often as it has, and none more than once more.
void meet(Page& page, int rank, int size, int turns) {
  HostBarrier barrier(page.words, size);
  std::mt19937 random(static_cast<unsigned>(rank));
  for (int turn = 1; turn <= turns; ++turn) {
    if (random() % 16 == 0) usleep(random() % 200);
    page.come[rank].store(turn);
    const std::uint32_t seen = barrier.arrive();
    CHECK(barrier.await(seen, random() % 2 ? kNoLook : kLook, later()));
    for (int other = 0; other < size; ++other) {
      const int come = page.come[other].load();
      CHECK(come == turn || come == turn + 1);
    }
  }
}

TEST(threads_pass_together) {
  for (const int size : {1, 2, 3, 7}) {
    Page page{};
    run_threads(size, [&](int rank) { meet(page, rank, size, 2'000); });
  }
}

TEST(processes_pass_together) {
  for (const int size : {2, 5}) {
    TestRegion region;
    auto& page = *new (region.base()) Page{};
    run_processes(size, [&](int rank) { meet(page, rank, size, 2'000); });
  }
}

TEST(a_wait_ends_at_its_deadline) {
  Page page{};
  HostBarrier barrier(page.words, 2);
  const std::uint32_t turn = barrier.arrive();
  for (const auto look : {std::chrono::nanoseconds(kNoLook), std::chrono::nanoseconds(kLook)}) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(20);
    CHECK(!barrier.await(turn, look, deadline));
    CHECK(Clock::now() >= deadline);
  }
  // Who has given up waiting has come nevertheless.
  CHECK(HostBarrier(page.words, 2).arrive() == turn);
  CHECK(barrier.await(turn, kNoLook, Clock::now()));
}

// A process that dies before it comes leaves the others to their deadline; they can still be let through.
TEST(a_dead_process_does_not_come) {
  TestRegion region;
  auto& page = *new (region.base()) Page{};
  Processes processes(2, [&](int rank) {
    HostBarrier barrier(page.words, 2);
    if (rank == 1) pause();
    const std::uint32_t turn = barrier.arrive();
    CHECK(!barrier.await(turn, kNoLook, Clock::now() + std::chrono::milliseconds(50)));
  });
  kill(processes.pid(1), SIGKILL);
  processes.check_ends(1);
  CHECK(HostBarrier(page.words, 2).arrive() == 0);
  CHECK_EQ(page.words.turn.load(), 1u);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
