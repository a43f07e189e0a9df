// Looks at the links to other hosts between operations (Communicator::look_around, CurrentOperation::borrow).
#include <atomic>
#include <thread>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/message_traffic.hpp"
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

/// Blocks until all `size` ranks have come here.
void meet_in(Store& store, int rank, int size) {
  store.set("here/" + std::to_string(rank), "");
  for (int other = 0; other < size; ++other) store.get("here/" + std::to_string(other), Deadline::in(kLong));
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
    meet_in(store, rank, 2);
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

// Nobody calls anything: the ranks between them pass the failure on.
TEST(a_failure_reaches_hosts_that_compute) {
  MemoryStore store;
  run_threads(6, [&](int rank) {
    auto c = join_on_own_host(store, rank, 6);
    meet_in(store, rank, 6);
    if (rank == 0) c->fail(ErrorCode::system, "rank 0 has no paper");
    const Deadline patience = Deadline::in(kLong);
    while (!c->failed() && !patience.passed()) usleep(1000);
    CHECK_EQ(std::string(error_of([&] { c->check(); }).what()), "rank 0 has no paper");
    store.set("heard/" + std::to_string(rank), "");
    for (int other = 0; other < 6; ++other) store.get("heard/" + std::to_string(other), Deadline::in(kLong));
  });
}

// Rank 1 waits, and has no link to rank 4, on no ring and no leap. All others compute.
TEST(a_death_reaches_a_host_that_waits) {
  FileStore store;
  Processes processes(8, [&](int rank) {
    auto c = join_on_own_host(store, rank, 8);
    meet_in(store, rank, 8);
    if (rank == 4) kill(getpid(), SIGKILL);
    if (rank == 1) {
      const Error error = error_of([&] { pass_committed(*c, 3); });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "rank 4 (");
      store.set("over", "");
    }
    store.get("over", Deadline::in(kLong));
  });
  processes.check_ends(4);
}

// A group that is not used does not fail because a rank has gone: the others may have messages for each
// other.
TEST(a_death_alone_fails_nothing) {
  FileStore store;
  Processes processes(3, [&](int rank) {
    auto c = join_on_own_host(store, rank, 3);
    meet_in(store, rank, 3);
    if (rank == 2) kill(getpid(), SIGKILL);
    const Deadline patience = Deadline::in(kLong);
    while (!c->end_of(2) && !patience.passed()) usleep(1000);
    for (int tag = 0; tag < 15; ++tag) {
      std::byte out{7}, in{};
      Outcome sent = send(*c, 1 - rank, tag, {&out, 1});
      CHECK_EQ(receive(*c, 1 - rank, tag, {&in, 1}).get(), 1 - rank);
      sent.get();
      usleep(100'000);
    }
    CHECK(!c->failed());
    store.set("done/" + std::to_string(rank), "");
    store.get("done/" + std::to_string(1 - rank), Deadline::in(kLong));
  });
  processes.check_ends(2);
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
