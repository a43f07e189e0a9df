// Ranks that are interrupted while they wait for others: every rank hears of it, and of who it was.
#include "transport/interruption_check.hpp"

#include <atomic>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{30 * 60'000};

// The thread that is interrupted is rank 0's.
thread_local bool is_interrupted = false;

std::string look() {
  return is_interrupted ? "KeyboardInterrupt" : "";
}

Error interrupted_inside(int size, const std::vector<std::string>& hosts,
                         const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  set_interruption_check(&look);
  return same_error_of(size, [&](int rank) {
    auto config = test_config(rank, size);
    if (!hosts.empty()) config.host_id = hosts[static_cast<std::size_t>(rank)];
    auto c = Communicator::create(store, config);
    is_interrupted = rank == 0;
    return error_of([&] { body(*c); });
  });
}

/// The last rank never comes.
void without_the_last(Communicator& c) {
  if (c.rank() == c.size() - 1) {
    while (!c.failed()) usleep(1000);
    c.check();
  }
  Operation operation(c, {.collective = 1, .count = 3}, {}, Deadline::in(kLong));
  c.left().take_committed(1);
}

TEST(before_an_operation) {
  const Error error = interrupted_inside(3, {}, without_the_last);
  CHECK(error.code() == ErrorCode::aborted);
  CHECK_EQ(
      std::string(error.what()),
      "rank 0 was interrupted by KeyboardInterrupt while it waited for rank 2 to begin test_1(3 elements) "
      "(operation 1 of group test), and aborted the group");
}

/// Everybody waits for a block of its left neighbour, and nobody sends one.
void without_blocks(Communicator& c) {
  Operation operation(c, {.collective = 1}, {}, Deadline::in(kLong));
  c.left().take_committed(1);
}

TEST(inside_an_operation) {
  const Error error = interrupted_inside(2, {}, without_blocks);
  CHECK(error.code() == ErrorCode::aborted);
  check_contains(error.what(),
                 "rank 0 was interrupted by KeyboardInterrupt while it waited for rank 1 to send a block");
}

TEST(between_hosts) {
  find_zmq_for_tests();
  const Error error = interrupted_inside(3, {"a", "b", "c"}, without_blocks);
  CHECK(error.code() == ErrorCode::aborted);
  check_contains(error.what(), "rank 0 was interrupted by KeyboardInterrupt while it waited for rank 2 ");
}

TEST(while_a_group_is_put_together) {
  MemoryStore store;
  set_interruption_check(&look);
  // The last of three ranks does not come.
  const Error error = same_error_of(2, [&](int rank) {
    is_interrupted = rank == 0;
    return error_of([&] {
      auto config = test_config(rank, 3);
      config.timeout = kLong;
      Communicator::create(store, config);
    });
  });
  CHECK(error.code() == ErrorCode::aborted);
  CHECK_EQ(std::string(error.what()),
           "rank 0 was interrupted by KeyboardInterrupt while group test was put together");
}

TEST(a_wait_that_ends_soon_does_not_look) {
  MemoryStore store;
  set_interruption_check(&look);
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    is_interrupted = true;
    for (int i = 0; i < 100; ++i) {
      Operation operation(*c, {.collective = 1}, {}, Deadline::in(kLong));
      operation.finish();
    }
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
