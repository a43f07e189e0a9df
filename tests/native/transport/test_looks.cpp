// Looks at the links to other hosts between operations (Communicator::look_around, CurrentOperation::borrow).
#include <atomic>
#include <thread>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/state/current_operation.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{300'000};

std::unique_ptr<Communicator> join_on_own_host(Store& store, int rank, int size) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, size);
  config.host_id = "host" + std::to_string(rank);
  return Communicator::create(store, config);
}

TEST(a_death_is_noticed_between_operations) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    auto c = join_on_own_host(store, rank, 2);
    pass_committed(*c, 3);
    store.set("through/" + std::to_string(rank), "");
    store.get("through/" + std::to_string(1 - rank), Deadline::in(kLong));
    if (rank == 1) kill(getpid(), SIGKILL);
    const Deadline patience = Deadline::in(kLong);
    while (!c->failed() && !patience.passed()) {
      c->look_around();
      usleep(1000);
    }
    CHECK(c->end_of(1).has_value());
    const Error error = error_of([&] { c->check(); });
    CHECK(error.code() == ErrorCode::peer_dead);
    check_contains(error.what(), "the connection of rank 0 to rank 1 (");
    check_contains(error.what(), " ended after ");
  });
  processes.check_ends(1);
}

TEST(a_failure_of_another_host_is_heard_between_operations) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join_on_own_host(store, rank, 2);
    pass_committed(*c, 3);
    if (rank == 1) c->fail(ErrorCode::system, "rank 1 has no paper");
    const Deadline patience = Deadline::in(kLong);
    while (!c->failed() && !patience.passed()) {
      c->look_around();
      usleep(1000);
    }
    CHECK_EQ(std::string(error_of([&] { c->check(); }).what()), "rank 1 has no paper");
    store.set("heard/" + std::to_string(rank), "");
    store.get("heard/" + std::to_string(1 - rank), Deadline::in(kLong));
  });
}

// Operations follow each other while other threads look: no look takes part in an operation, and no operation
// is refused for a look.
TEST(looks_stay_out_of_operations) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join_on_own_host(store, rank, 2);
    std::atomic<bool> done{false};
    std::atomic<int> looks{0};
    std::thread looking([&] {
      while (!done) {
        c->look_around();
        ++looks;
      }
    });
    for (int i = 0; i < 50; ++i) pass_committed(*c, 3);
    while (looks == 0) usleep(100);
    done = true;
    looking.join();
    CHECK(!c->failed());
  });
}

TEST(an_operation_has_one_owner) {
  Group group;
  CurrentOperation operation(group, Deadline::in(kLong));
  CHECK(operation.borrow());
  CHECK(!operation.borrow());
  CHECK(!operation.under_way());
  std::thread beginner([&] {
    CHECK(operation.begin({}, Deadline::in(kLong)));  // waits for give_back()
  });
  operation.give_back();
  beginner.join();
  CHECK(operation.under_way());
  CHECK(!operation.borrow());
  CHECK(!operation.begin({}, Deadline::in(kLong)));
  operation.end();
  CHECK(operation.borrow());
}

}  // namespace
}  // namespace vccl
TEST_MAIN
