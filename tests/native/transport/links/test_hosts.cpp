// Groups over several (pretended) hosts: links over ZeroMQ, alone and beside mapped ones.
#include <atomic>
#include <cstring>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{300'000};

CommunicatorConfig on_host(int rank, int size, const std::string& host) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, size);
  config.host_id = host;
  return config;
}

/// `hosts[rank]` is the host of a rank.
void check_hosts(Store& store, int rank, const std::string& hosts) {
  const int size = static_cast<int>(hosts.size());
  TestRegion region;
  CommunicatorConfig config = on_host(rank, size, std::string(1, hosts[static_cast<std::size_t>(rank)]));
  config.regions = {region.region()};
  auto c = Communicator::create(store, config);
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      CHECK_EQ(c->host_of(a) == c->host_of(b),
               hosts[static_cast<std::size_t>(a)] == hosts[static_cast<std::size_t>(b)]);
    }
  }
  // One host's ranks follow each other.
  int changes = 0;
  for (int p = 0; p < size; ++p)
    changes += c->host_of(c->ring_rank(p)) != c->host_of(c->ring_rank((p + 1) % size));
  CHECK_EQ(changes, c->host_count() == 1 ? 0 : c->host_count());
  check_rounds(*c, region);
}

void with_threads(const std::string& hosts) {
  MemoryStore store;
  run_threads(static_cast<int>(hosts.size()), [&](int rank) { check_hosts(store, rank, hosts); });
  CHECK_EQ(store.keys(), 1u);  // the identity
}

void with_processes(const std::string& hosts) {
  FileStore store;
  run_processes(static_cast<int>(hosts.size()), [&](int rank) { check_hosts(store, rank, hosts); });
  CHECK_EQ(store.keys(), 1u);  // the identity
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(processes_two_hosts) {
  with_processes("ab");
}
TEST(processes_two_by_two) {
  with_processes("aabb");
}
TEST(processes_interleaved) {
  with_processes("abab");
}
TEST(processes_three_hosts) {
  with_processes("abbc");
}

TEST(a_killed_rank_on_another_host_is_reported) {
  for (const std::string hosts : {"ab", "aab", "aabb", "abc"}) {
    const int size = static_cast<int>(hosts.size());
    FileStore store;
    Processes processes(size, [&](int rank) {
      auto c = Communicator::create(
          store, on_host(rank, size, std::string(1, hosts[static_cast<std::size_t>(rank)])));
      store.set("ready/" + std::to_string(rank), "");
      const Error error = error_of([&] {
        while (true) pass_committed(*c, 3);
      });
      CHECK(error.code() == ErrorCode::peer_dead);
    });
    for (int rank = 0; rank < size; ++rank) store.get("ready/" + std::to_string(rank), Deadline::in(kLong));
    usleep(5000);
    kill(processes.pid(1), SIGKILL);
    const auto start = Clock::now();
    processes.check_ends(1);
    CHECK(Clock::now() - start < std::chrono::seconds(60));
  }
}

/// Ranks on these hosts begin an operation while rank 1 is stopped. `body(rank, c)` runs it. Rank 1 goes on
/// when `stopped()` returns.
void with_rank_1_stopped(const std::string& hosts, const char* link_timeout, Store& store,
                         const std::function<void(int, Communicator&)>& body,
                         const std::function<void()>& stopped) {
  const int size = static_cast<int>(hosts.size());
  Processes processes(size, [&](int rank) {
    setenv("VCCL_LINK_TIMEOUT", link_timeout, 1);
    auto c =
        Communicator::create(store, on_host(rank, size, hosts.substr(static_cast<std::size_t>(rank), 1)));
    pass_committed(*c, 3);
    store.set("ready/" + std::to_string(rank), "");
    store.get("go", Deadline::in(kLong));
    body(rank, *c);
  });
  for (int rank = 0; rank < size; ++rank) store.get("ready/" + std::to_string(rank), Deadline::in(kLong));
  kill(processes.pid(1), SIGSTOP);
  store.set("go", "");
  stopped();
  kill(processes.pid(1), SIGCONT);
  processes.check_ends();
}

TEST(a_stopped_rank_on_another_host_is_lost) {
  for (const std::string hosts : {"ab", "abc", "aabb", "abb"}) {
    FileStore store;
    const auto lost = [&](int rank, Communicator& c) {
      const Error error = error_of([&] {
        while (true) pass_committed(c, 3);
      });
      if (rank == 1) return;  // this one may also hear from the others that it is lost
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "to rank 1 (tcp://");
      check_contains(error.what(), ", host " + hosts.substr(1, 1) + ") ended");
      store.set("failed/" + std::to_string(rank), "");
    };
    with_rank_1_stopped(hosts, "3", store, lost, [&] {
      for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
        if (rank != 1) store.get("failed/" + std::to_string(rank), Deadline::in(kLong));
      }
    });
  }
}

// As in a debugger: with the default of VCCL_LINK_TIMEOUT the rank would be lost.
TEST(a_stopped_rank_is_waited_for_if_the_user_wants_it) {
  FileStore store;
  with_rank_1_stopped(
      "ab", "3600", store, [](int, Communicator& c) { pass_committed(c, 3); },
      [] { usleep(useconds_t{7} * 1000 * 1000); });
}

// The hosts call differently, and the calls go over different links. Rank 1 has no link on the ring of all
// ranks, so it may be in its next call when it hears of the other host's.
TEST(hosts_that_call_differently_are_told_so_on_whatever_links) {
  for (const std::string hosts : {"aaabbb", "aaab", "abbb"}) {
    const int size = static_cast<int>(hosts.size());
    FileStore store;
    run_processes(size, [&](int rank) {
      const char host = hosts[static_cast<std::size_t>(rank)];
      auto c = Communicator::create(store, on_host(rank, size, std::string(1, host)));
      const auto meet = [&](const std::string& where) {
        store.set(where + std::to_string(rank), "");
        for (int other = 0; other < size; ++other)
          store.get(where + std::to_string(other), Deadline::in(kLong));
      };
      meet("made/");
      const Error error = error_of([&] {
        while (true) {
          const Announcement announcement{
              .signature = {.collective = static_cast<std::uint8_t>(host == 'a' ? 1 : 2)},
              .route = host == 'b' ? Route::host_rings : Route::ring};
          Operation operation(*c, announcement, Deadline::in(kLong));
          operation.finish();
        }
      });
      CHECK(error.code() == ErrorCode::mismatch);
      check_contains(error.what(), "Every rank must call the same collectives in the same order");
      // Nobody leaves before all have their errors.
      store.set("told/" + std::to_string(rank), "");
      for (int other = 0; other < size; ++other)
        store.get("told/" + std::to_string(other), Deadline::in(kLong));
    });
  }
}

// Rank 0 waits for a rank that lives, but does not come: perhaps it waits for the dead one elsewhere.
TEST(a_death_is_seen_while_another_rank_is_waited_for) {
  struct Case {
    std::string hosts;
    int victim, absent;
  };
  for (const auto& [hosts, victim, absent] : {Case{"aab", 2, 1}, Case{"abc", 1, 2}}) {
    FileStore store;
    Processes processes(3, [&, hosts = hosts, victim = victim, absent = absent](int rank) {
      auto c = Communicator::create(store,
                                    on_host(rank, 3, std::string(1, hosts[static_cast<std::size_t>(rank)])));
      pass_committed(*c, 3);
      store.set("through/" + std::to_string(rank), "");
      for (int other : {0, 1, 2}) store.get("through/" + std::to_string(other), Deadline::in(kLong));
      if (rank == victim) kill(getpid(), SIGKILL);
      if (rank == absent) {
        store.get("failed", Deadline::in(kLong));
        return;
      }
      const Error error = error_of([&] { pass_committed(*c, 1); });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "to rank " + std::to_string(victim) + " (tcp://");
      store.set("failed", "");
    });
    processes.check_ends(victim);
  }
}

TEST(threads_two_hosts) {
  with_threads("ab");
}
TEST(threads_two_by_two) {
  with_threads("aabb");
}
TEST(threads_interleaved) {
  with_threads("abab");
}
TEST(threads_three_hosts) {
  with_threads("abc");
}
TEST(threads_uneven_hosts) {
  with_threads("abbcb");
}

/// Every rank gets the same error.
Error same_error(const std::string& hosts, const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  return same_error_of(static_cast<int>(hosts.size()), [&](int rank) {
    auto c = Communicator::create(store, on_host(rank, static_cast<int>(hosts.size()),
                                                 std::string(1, hosts[static_cast<std::size_t>(rank)])));
    const Error error = error_of([&] { body(*c); });
    CHECK_EQ(std::string(error_of([&] { pass_committed(*c, 1); }).what()), error.what());
    return error;
  });
}

TEST(mismatch_between_hosts) {
  const Error error = same_error("ab", [](Communicator& c) {
    pass_committed(c, 2);
    Operation operation(c, {.collective = 1, .count = 4u + c.rank()}, {}, Deadline::in(kLong));
    operation.finish();
  });
  CHECK(error.code() == ErrorCode::mismatch);
  CHECK_EQ(std::string(error.what()),
           "rank 0 called test_1(4 elements) as operation 2 of group test, but rank 1 called test_1(5 "
           "elements). Every "
           "rank must call the same collectives in the same order with the same arguments.");
}

// Rank 1's next operation, and its first block, are there before rank 0 begins its own.
TEST(mismatch_with_a_neighbour_that_is_ahead) {
  std::atomic<bool> ahead{false};
  const Error error = same_error("ab", [&](Communicator& c) {
    Operation first(c, {.collective = 1}, {}, Deadline::in(kLong));
    if (c.rank() == 0) {
      *c.right().reserve() = std::byte(0);
      c.right().commit(1);
      for (int i = 0; i < 30'000 && !ahead; ++i) usleep(1000);
      usleep(20'000);  // for libzmq's thread
    } else {
      c.left().take_committed(1);
      c.left().release();
    }
    first.finish();
    const std::size_t bytes = 4 + static_cast<std::size_t>(c.rank());
    Operation second(c, {.collective = 1, .count = bytes}, {}, Deadline::in(kLong));
    std::memset(c.right().reserve(), 0, bytes);
    c.right().commit(bytes);
    ahead = true;
    c.left().take_committed(bytes);
    c.left().release();
    second.finish();
  });
  CHECK(error.code() == ErrorCode::mismatch);
  check_contains(error.what(), "rank 0 called test_1(4 elements) as operation 2");
  check_contains(error.what(), "rank 1 called test_1(5 elements)");
}

// Two pairs of neighbours may find the odd one out at the same time, so ranks of different hosts may name
// either pair.
TEST(mismatch_of_one_host_reaches_all) {
  for (const std::string hosts : {"aabb", "aab", "abb", "abc"}) {
    MemoryStore store;
    const int size = static_cast<int>(hosts.size());
    run_threads(size, [&](int rank) {
      auto c = Communicator::create(
          store, on_host(rank, size, std::string(1, hosts[static_cast<std::size_t>(rank)])));
      const Error error = error_of([&] {
        pass_committed(*c, 2);
        Operation operation(*c, {.collective = static_cast<std::uint8_t>(rank == 1 ? 9 : 8)}, {},
                            Deadline::in(kLong));
        c->left().take_committed(1);
      });
      CHECK(error.code() == ErrorCode::mismatch);
      check_contains(error.what(), "rank 1 called test_9(0 elements)");
      check_contains(error.what(), "called test_8(0 elements)");
    });
  }
}

TEST(abort_reaches_other_hosts) {
  const Error error = same_error("aabbc", [](Communicator& c) {
    pass_committed(c, 5);  // a rank that is still being made would have the failure there
    std::thread aborter;
    if (c.rank() == 2) {
      aborter = std::thread([&] {
        usleep(20'000);
        c.abort("enough");
      });
    }
    const Error caught = error_of([&] {
      Operation operation(c, {.collective = 1}, {}, Deadline::in(kLong));
      c.left().take_committed(1);
    });
    if (aborter.joinable()) aborter.join();
    throw caught;
  });
  CHECK_EQ(std::string(error.what()), "rank 2 aborted group test: enough");
}

TEST(an_operation_cut_short_between_hosts) {
  const Error error = same_error("ab", [](Communicator& c) {
    std::vector<std::byte> window(3 * Communicator::kBlockBytes);
    try {
      Operation operation(c, {.collective = 1, .count = 3}, window, Deadline::in(kLong));
      for (int i = 0; i < 3; ++i)
        c.right().post(static_cast<std::size_t>(i) * Communicator::kBlockBytes, Communicator::kBlockBytes);
      if (c.rank() == 0) throw std::runtime_error("from an algorithm");
      c.left().take(0, Communicator::kBlockBytes);
      c.left().release();
      while (true) c.left().take(0, Communicator::kBlockBytes), c.left().release();
    } catch (const std::runtime_error&) {
    }
    c.check();
  });
  CHECK(error.code() == ErrorCode::aborted);
}

TEST(timeout_names_the_rank_and_the_link) {
  const Error error = same_error("ab", [](Communicator& c) {
    if (c.rank() == 1) {
      while (!c.failed()) {
        usleep(1000);
        // A rank that computes hears of it when it next comes to the group.
        try {
          Operation operation(c, {.collective = 2}, {}, Deadline::in(kLong));
          c.left().take_committed(1);
        } catch (const Error&) {
        }
      }
      c.check();
    }
    Operation operation(c, {.collective = 2}, {}, Deadline::in(Milliseconds(3'000)));
    c.left().take_committed(1);
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(), "rank 0 waited 3 s for rank 1 (tcp://127.0.0.1, host b) on another host ");
  check_contains(error.what(), "to send a block of test_2(0 elements) (operation 1 of group test)");
}

TEST(a_rank_that_leaves_another_host) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = Communicator::create(store, on_host(rank, 3, rank == 2 ? "b" : "a"));
    for (int i = 0; i < 20; ++i) pass_committed(*c, 3);
    if (rank == 2) return;
    const Error error = error_of([&] { pass_committed(*c, 1); });
    CHECK(error.code() == ErrorCode::peer_left);
    check_contains(error.what(), "rank 2 left group test while rank ");
  });
}

TEST(a_rank_that_leaves_another_host_says_why) {
  check_reason_of_leaving([](int rank) { return on_host(rank, 3, rank == 2 ? "b" : "a"); },
                          [](Communicator& c) { pass_committed(c, 1); });
}

TEST(lengths_are_the_receivers_own) {
  const Error error = same_error("ab", [](Communicator& c) {
    Operation operation(c, {.collective = 1}, {}, Deadline::in(kLong));
    c.right().reserve();
    c.right().commit(c.rank() == 0 ? 10 : 11);
    c.left().take_committed(11);
    c.left().take_committed(11);
    c.left().release();
    operation.finish();
    // The rank that was sent 11 bytes fails with its neighbour.
    Operation second(c, {.collective = 1}, {}, Deadline::in(kLong));
    second.finish();
  });
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(),
                 "rank 0 sent a block of 10 bytes for operation 1 where rank 1 expected 11 bytes");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
