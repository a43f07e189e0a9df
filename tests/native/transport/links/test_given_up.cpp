// A rank that gives an operation up, on a ring over two hosts. What its neighbour still reads in its memory
// must not reach the other host as a result.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

using namespace vccl;

namespace {

const Deadline kLater = Deadline::in(Milliseconds(60'000));
constexpr std::size_t kBytes = 100'000;
constexpr std::byte kSent{7}, kLaterUse{66};

/// What has happened, which other ranks wait for.
enum Happened : int { kNothing, kFirstHasEnded, kOtherHostKnows, kSecondHasSent, kAllIsOver };

void wait_for(const std::atomic<int>& happened, int what) {
  while (happened.load() < what) std::this_thread::sleep_for(Milliseconds(1));
}

void note(std::atomic<int>& happened, int what) {
  int before = happened.load();
  while (before < what && !happened.compare_exchange_weak(before, what)) {
  }
}

void take(Communicator& communicator, std::span<std::byte> window) {
  std::memcpy(window.data(), communicator.left().take(0, kBytes), kBytes);
  communicator.left().release();
}

}  // namespace

// The block goes from rank 3 (host b) to 0 and 1 (host a), and to 2 (host b). Rank 0 gives up when rank 3 has
// ended the operation, so rank 3 hears of it in its next one: on host b, no rank has given up the first.
TEST(memory_of_a_rank_that_gave_up_does_not_reach_another_host) {
  find_zmq_for_tests();
  MemoryStore store;
  std::atomic<int> happened{kNothing};
  std::atomic<bool> is_used_again{false};
  TestRegion regions[4];
  run_threads(4, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 4);
    config.host_id = rank >= 2 ? "b" : "a";
    config.regions = {regions[rank].region()};
    const auto communicator = Communicator::create(store, config);
    const auto window = regions[rank].span(0, kBytes);
    const Announcement call{.signature = {.count = kBytes}, .window = window};
    std::ranges::fill(window, rank == 3 ? kSent : std::byte{0});
    if (rank == 3) {
      Operation operation(*communicator, call, kLater);
      communicator->right().post(0, kBytes);
      operation.finish();
      note(happened, kFirstHasEnded);
      CHECK_THROWS(Operation(*communicator, call, kLater), Error);
      note(happened, kOtherHostKnows);
    } else if (rank == 0) {
      {
        Operation operation(*communicator, call, kLater);
        take(*communicator, window);
        communicator->right().post(0, kBytes);
        wait_for(happened, kFirstHasEnded);
      }  // an operation that is not finished is given up
      std::ranges::fill(window, kLaterUse);
      is_used_again = true;
    } else if (rank == 1) {
      Operation operation(*communicator, call, kLater);
      wait_for(happened, kOtherHostKnows);
      while (!is_used_again) std::this_thread::sleep_for(Milliseconds(1));
      const Error error = error_of([&] {
        take(*communicator, window);
        communicator->right().post(0, kBytes);
        note(happened, kSecondHasSent);
        wait_for(happened, kAllIsOver);
        operation.finish();
      });
      CHECK(error.code() == ErrorCode::aborted);
      note(happened, kSecondHasSent);
    } else {
      Operation operation(*communicator, call, kLater);
      wait_for(happened, kSecondHasSent);
      const Error error = error_of([&] {
        take(*communicator, window);
        note(happened, kAllIsOver);
        operation.finish();
      });
      CHECK(error.code() == ErrorCode::aborted);
      note(happened, kAllIsOver);
    }
    wait_for(happened, kAllIsOver);
  });
}

TEST_MAIN
