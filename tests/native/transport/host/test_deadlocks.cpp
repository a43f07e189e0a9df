// Ranks that wait for each other in different calls learn so, and others are left alone.
#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "tests/native/transport/harness.hpp"
#include "transport/deadlock_watch.hpp"

using namespace vccl;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = Milliseconds(30'000);

/// The program of every rank has `threads` threads, and is blocked when all of them wait.
void count_threads(std::size_t threads) {
  DeadlockWatch::of_this_process().set_blocked_threads(
      [threads](std::span<const pthread_t> waiting) -> std::optional<std::uint64_t> {
        if (waiting.size() != threads) return std::nullopt;
        return 1;
      });
}

/// One store a group. Made before the ranks are forked.
using Stores = std::map<std::string, FileStore>;

/// Null on a rank that is not in the group.
std::unique_ptr<Communicator> make(Stores& stores, const std::string& name, const std::vector<int>& ranks,
                                   int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return nullptr;
  const int own = static_cast<int>(found - ranks.begin());
  auto config = test_config(own, static_cast<int>(ranks.size()));
  config.name = name;
  config.device = "cpu";
  return Communicator::create(stores.at(name), config);
}

void collective(Communicator& communicator, std::uint64_t count) {
  Operation operation(communicator, {.count = count}, {}, Deadline::in(kTimeout));
  operation.finish();
}

/// What the ranks of a deadlock have to say: the error, and soon.
Error soon(const std::function<void()>& call) {
  const auto begin = Clock::now();
  const Error error = error_of(call);
  CHECK(Clock::now() - begin < std::chrono::milliseconds(kTimeout) / 2);
  CHECK(error.code() == ErrorCode::mismatch);
  return error;
}

/// The same for a message that has ended.
Error soon_of(const Error& error) {
  return soon([&] { throw error; });
}

/// Waits until both have failed. Whoever finds the circle fails its groups one after the other, so another
/// rank may see the first alone.
bool both_fail(const Communicator& a, const Communicator& b) {
  const auto patience = Deadline::in(Milliseconds(60'000));
  while (!(a.failed() && b.failed()) && !patience.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return a.failed() && b.failed();
}

}  // namespace

TEST(two_groups_in_crossed_order) {
  Stores stores;
  for (const char* name : {"a", "b", "world"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(1);
    auto world = make(stores, "world", {0, 1}, rank);
    auto a = make(stores, "a", {0, 1}, rank);
    auto b = make(stores, "b", {1, 0}, rank);
    collective(*a, 3);
    auto& mine = rank == 0 ? *a : *b;
    const Error error = soon([&] { collective(mine, 7); });
    check_contains(error.what(), "rank 0: test_0(7 elements) on cpu, operation 2 of group a; ");
    check_contains(error.what(), "rank 1: test_0(7 elements) on cpu, operation 1 of group b");
    CHECK(both_fail(*a, *b) && !world->failed());
    const Error other = error_of([&] { collective(rank == 0 ? *b : *a, 7); });
    CHECK_EQ(std::string(other.what()), std::string(error.what()));
  });
}

TEST(three_groups_in_a_circle) {
  Stores stores;
  for (const char* name : {"g", "world", "g0", "g1", "g2"}) stores[name];
  run_processes(3, [&](int rank) {
    count_threads(1);
    auto world = make(stores, "world", {0, 1, 2}, rank);
    const std::vector<std::vector<int>> members{{0, 1}, {1, 2}, {0, 2}};
    std::vector<std::unique_ptr<Communicator>> groups(3);
    for (int i = 0; i < 3; ++i) {
      const auto group = static_cast<std::size_t>(i);
      groups[group] = make(stores, "g" + std::to_string(i), members[group], rank);
    }
    // Rank i waits in the group that it shares with rank i + 1.
    const Error error = soon([&] { collective(*groups[static_cast<std::size_t>(rank)], 7); });
    for (int i = 0; i < 3; ++i) {
      const auto number = std::to_string(i);
      check_contains(error.what(),
                     "rank " + number + ": test_0(7 elements) on cpu, operation 1 of group g" + number);
    }
  });
}

TEST(a_meeting_and_a_collective) {
  Stores stores;
  for (const char* name : {"world"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(1);
    auto world = make(stores, "world", {0, 1}, rank);
    const Error error = soon([&] {
      if (rank == 0) return collective(*world, 7);
      const auto meeting = world->announce_meeting("all_reduce on vdev:1, the first there");
      while (!world->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      world->check();
    });
    check_contains(error.what(), "rank 0: test_0(7 elements) on cpu, operation 1 of group world; ");
    check_contains(error.what(), "rank 1: all_reduce on vdev:1, the first there");
  });
}

TEST(a_meeting_that_all_come_to_may_take_long) {
  Stores stores;
  for (const char* name : {"world"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(1);
    auto world = make(stores, "world", {0, 1}, rank);
    {
      const auto meeting = world->announce_meeting("all_reduce on vdev, the first there");
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    collective(*world, 7);
  });
}

TEST(a_slow_rank_is_no_deadlock) {
  Stores stores;
  for (const char* name : {"a", "b"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(1);
    auto a = make(stores, "a", {0, 1}, rank);
    auto b = make(stores, "b", {0, 1}, rank);
    for (int slow = 0; slow < 2; ++slow) {
      if (rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      collective(*a, 1);
      collective(*b, 2);
    }
  });
}

// Each rank begins with another group, and sleeps before it begins with the other on a second thread.
TEST(two_threads_may_use_two_groups_in_any_order) {
  Stores stores;
  for (const char* name : {"a", "b"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(2);
    auto a = make(stores, "a", {0, 1}, rank);
    auto b = make(stores, "b", {0, 1}, rank);
    auto& first = rank == 0 ? *a : *b;
    auto& second = rank == 0 ? *b : *a;
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      collective(second, 7);
    });
    collective(first, 7);
    later.join();
  });
}

// Both threads wait, on both ranks, and for the same operations: the last one of all only comes late.
TEST(many_waits_with_one_way_out) {
  Stores stores;
  for (const char* name : {"a", "world"}) stores[name];
  run_processes(3, [&](int rank) {
    count_threads(rank == 2 ? 1 : 2);
    auto world = make(stores, "world", {0, 1, 2}, rank);
    auto a = make(stores, "a", {0, 1}, rank);
    std::thread other;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(2));
    if (rank < 2) {
      other = std::thread([&] {
        if (rank == 0) return collective(*a, 7);
        while (world->sequence() == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::seconds(3));
        collective(*a, 7);
      });
    }
    collective(*world, 7);
    if (other.joinable()) other.join();
  });
}

TEST(a_timeout_says_where_the_other_waits) {
  Stores stores;
  for (const char* name : {"a", "b"}) stores[name];
  run_processes(2, [&](int rank) {
    // No thread is known to be blocked here, so nothing is proved.
    auto a = make(stores, "a", {0, 1}, rank);
    auto b = make(stores, "b", {0, 1}, rank);
    auto& mine = rank == 0 ? *a : *b;
    const auto timeout = rank == 0 ? Milliseconds(2500) : kTimeout;
    const Error error = error_of([&] {
      Operation operation(mine, {.count = 7}, {}, Deadline::in(timeout));
      operation.finish();
    });
    if (rank == 0) {
      CHECK(error.code() == ErrorCode::timeout);
      check_contains(error.what(), "rank 1 waits in test_0(7 elements) on cpu, operation 1 of group b");
      b->abort("enough");
    }
  });
}

/// Receives a byte, or sends four mebibytes, which nobody receives, and blocks until that has ended.
Error stuck_message(Communicator& communicator, int peer, bool sends, int tag = 0) {
  std::vector<std::byte> bytes(sends ? std::size_t{4} << 20 : 1);
  std::promise<std::string> ended;
  ErrorCode code{};
  const auto done = [&](int, const Error* error) {
    if (error) code = error->code();
    ended.set_value(error ? error->what() : "");
  };
  const Signature signature{.count = bytes.size()};
  if (sends)
    communicator.messages().send(peer, {tag}, signature, bytes, Deadline::in(kTimeout), done);
  else
    communicator.messages().receive(peer, {tag}, signature, bytes, Deadline::in(kTimeout), done);
  const std::string text = ended.get_future().get();
  return Error(code, text);
}

/// Every thread of the program waits for its messages.
void all_wait() {
  DeadlockWatch::of_this_process().set_blocked_threads(
      [](std::span<const pthread_t>) -> std::optional<std::uint64_t> { return 1; });
}

TEST(a_ring_of_receives_and_one_of_sends) {
  for (const bool sends : {false, true}) {
    Stores stores;
    for (const char* name : {"a"}) stores[name];
    run_processes(3, [&](int rank) {
      all_wait();
      auto a = make(stores, "a", {0, 1, 2}, rank);
      const Error error = soon_of(stuck_message(*a, (rank + 1) % 3, sends));
      for (int i = 0; i < 3; ++i)
        check_contains(error.what(),
                       base::text("rank ", i, sends ? ": send to rank " : ": recv from rank ", (i + 1) % 3));
    });
  }
}

TEST(a_receive_from_any_source_waits_for_all_others) {
  Stores stores;
  for (const char* name : {"a"}) stores[name];
  run_processes(3, [&](int rank) {
    all_wait();
    auto a = make(stores, "a", {0, 1, 2}, rank);
    // A message of rank 1 or 2 would end the wait of rank 0, for which both of them wait.
    const Error error = soon_of(stuck_message(*a, rank == 0 ? kAnySource : 0, false));
    check_contains(error.what(), "rank 0: recv from any source");
  });
}

TEST(a_tag_that_only_one_side_uses) {
  Stores stores;
  for (const char* name : {"a"}) stores[name];
  run_processes(2, [&](int rank) {
    all_wait();
    auto a = make(stores, "a", {0, 1}, rank);
    const Error error = soon_of(stuck_message(*a, 1 - rank, rank == 0, rank == 0 ? 3 : 5));
    check_contains(error.what(), "rank 0: send to rank 1 of test_0(4194304 elements) with tag 3 in group a");
    check_contains(error.what(),
                   "with tag 5 in group a; of what has come from there and not been received: 1 with tag 3");
  });
}

TEST(a_message_and_a_collective) {
  Stores stores;
  for (const char* name : {"a", "b"}) stores[name];
  run_processes(2, [&](int rank) {
    all_wait();
    auto a = make(stores, "a", {0, 1}, rank);
    auto b = make(stores, "b", {0, 1}, rank);
    const Error error = rank == 0 ? soon([&] { collective(*b, 7); }) : soon_of(stuck_message(*a, 0, false));
    check_contains(error.what(), "rank 0: test_0(7 elements) on cpu, operation 1 of group b");
    check_contains(error.what(), "rank 1: recv from rank 0");
    CHECK(both_fail(*a, *b));
  });
}

TEST(receives_that_are_only_posted_are_left_alone) {
  Stores stores;
  for (const char* name : {"a"}) stores[name];
  run_processes(2, [&](int rank) {
    // The program computes, and nobody waits.
    DeadlockWatch::of_this_process().set_blocked_threads(
        [](std::span<const pthread_t>) -> std::optional<std::uint64_t> { return std::nullopt; });
    auto a = make(stores, "a", {0, 1}, rank);
    std::byte byte{};
    std::promise<void> received;
    a->messages().receive(1 - rank, {0}, {.count = 1}, {&byte, 1}, Deadline::in(kTimeout),
                          [&](int, const Error* error) {
                            CHECK(!error);
                            received.set_value();
                          });
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    CHECK(!a->failed());
    std::promise<void> sent;
    a->messages().send(1 - rank, {0}, {.count = 1}, {&byte, 1}, Deadline::in(kTimeout),
                       [&](int, const Error*) { sent.set_value(); });
    received.get_future().get();
    sent.get_future().get();
  });
}

TEST(a_timeout_says_that_the_other_waits_nowhere) {
  Stores stores;
  for (const char* name : {"a"}) stores[name];
  run_processes(2, [&](int rank) {
    count_threads(1);
    auto a = make(stores, "a", {0, 1}, rank);
    if (rank == 1) {
      while (!a->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const Error error = error_of([&] {
      Operation operation(*a, {.count = 7}, {}, Deadline::in(Milliseconds(700)));
      operation.finish();
    });
    check_contains(error.what(),
                   "rank 1 has begun 0 operations of this communicator; rank 1 waits in no collective and "
                   "for no message");
  });
}

TEST_MAIN
