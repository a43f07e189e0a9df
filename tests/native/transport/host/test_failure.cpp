// Everything that goes wrong between ranks of one host: who hears of it, and in which words.
#include <atomic>
#include <random>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/meeting/deadly_store.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{300'000};  // far beyond what any of these failures may take to be seen

void run_operation(Communicator& c, std::uint64_t count, Milliseconds timeout = kLong) {
  Operation operation(c, {.collective = 1, .count = count}, {}, Deadline::in(timeout));
  for (std::uint64_t i = 0; i < count; ++i) {
    c.right().reserve()[0] = pattern(c.rank(), 0, i);
    c.right().commit(1);
    c.left().take_committed(1);
    c.left().release();
  }
  operation.finish();
}

/// Every rank of `size` threads gets the same error from `body`, and goes on getting it.
Error same_error(int size, const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  return same_error_of(size, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, size));
    const Error error = error_of([&] { body(*c); });
    CHECK(c->failed());
    CHECK_EQ(std::string(error_of([&] { c->check(); }).what()), error.what());
    CHECK_EQ(std::string(error_of([&] { run_operation(*c, 1); }).what()), error.what());
    return error;
  });
}

TEST(mismatch_names_both_sides) {
  for (int size : {2, 3, 5}) {
    const Error error = same_error(size, [&](Communicator& c) {
      for (int i = 0; i < 6; ++i) run_operation(c, 2);
      run_operation(c, c.rank() == size - 1 ? 5 : 4);
    });
    CHECK(error.code() == ErrorCode::mismatch);
    CHECK_EQ(std::string(error.what()),
             "rank 0 called test_1(4 elements) as operation 7 of group test, but rank " +
                 std::to_string(size - 1) +
                 " called test_1(5 elements). Every rank must call the same collectives in the same order "
                 "with the "
                 "same arguments.");
  }
}

TEST(every_field_of_a_signature_counts) {
  const Signature signatures[] = {{.collective = 1}, {.dtype = 1}, {.op = 1},
                                  {.root = 0},       {.count = 1}, {.extra = 1}};
  for (const Signature& other : signatures) {
    const Error error = same_error(2, [&](Communicator& c) {
      Operation operation(c, c.rank() ? other : Signature{}, {}, Deadline::in(kLong));
    });
    CHECK(error.code() == ErrorCode::mismatch);
  }
}

TEST(timeout_names_the_late) {
  const Error error = same_error(3, [&](Communicator& c) {
    run_operation(c, 1);
    if (c.rank() == 2) {
      while (!c.failed()) usleep(1000);
      c.check();
    }
    run_operation(c, 3, Milliseconds(c.rank() == 0 ? 3'000 : 300'000));
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(
      error.what(),
      "rank 0 waited 3 s for rank 2 to begin test_1(3 elements) (operation 2 of group test); rank 2 has "
      "begun 1 operations");
}

TEST(timeout_inside_an_operation) {
  const Error error = same_error(2, [&](Communicator& c) {
    Operation operation(c, {.collective = 3}, {},
                        Deadline::in(Milliseconds(c.rank() == 0 ? 3'000 : 300'000)));
    if (c.rank() == 1) {
      while (!c.failed()) usleep(1000);
      c.check();
    }
    c.left().take_committed(1);
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(), "rank 0 waited 3 s for rank 1 to send a block of test_3(0 elements)");
}

TEST(abort_from_another_thread) {
  const Error error = same_error(3, [&](Communicator& c) {
    run_operation(c, 2);  // a rank that is still being made would have the failure there
    std::thread aborter;
    if (c.rank() == 1) {
      aborter = std::thread([&] {
        usleep(50'000);
        c.abort("the user pressed a button");
      });
      while (!c.failed()) usleep(1000);
    }
    if (aborter.joinable()) aborter.join();
    run_operation(c, 1);
  });
  CHECK(error.code() == ErrorCode::aborted);
  CHECK_EQ(std::string(error.what()), "rank 1 aborted group test: the user pressed a button");
}

TEST(first_failure_wins) {
  MemoryStore store;
  auto c = Communicator::create(store, test_config(0, 1));
  c->fail(ErrorCode::protocol, "first");
  c->fail(ErrorCode::timeout, "second");
  c->abort("third");
  const Error error = error_of([&] { c->check(); });
  CHECK(error.code() == ErrorCode::protocol);
  CHECK_EQ(std::string(error.what()), "first");
  auto other = Communicator::create(store, test_config(0, 1));
  CHECK(!other->failed());
  other->fail(ErrorCode::system, std::string(5000, 'x'));
  CHECK_EQ(std::string(error_of([&] { other->check(); }).what()), std::string(3072, 'x'));
}

TEST(a_failure_inside_an_operation_releases_the_others) {
  const Error error = same_error(3, [&](Communicator& c) {
    Operation operation(c, {.collective = 4}, {}, Deadline::in(kLong));
    if (c.rank() == 1) {
      c.fail(ErrorCode::unsupported, "no kernel");
    }
    c.left().take_committed(1);
  });
  CHECK_EQ(std::string(error.what()), "no kernel");
}

TEST(an_operation_cut_short_releases_the_others) {
  const Error unwound = same_error(2, [&](Communicator& c) {
    try {
      Operation operation(c, {.collective = 4}, {}, Deadline::in(kLong));
      if (c.rank() == 0) throw std::runtime_error("from an algorithm");
      c.left().take_committed(1);
    } catch (const std::runtime_error&) {
    }
    c.check();
  });
  CHECK(unwound.code() == ErrorCode::aborted);
  CHECK_EQ(std::string(unwound.what()),
           "rank 0 gave up test_4(0 elements) (operation 1 of group test) before its end");
}

// A block lies in the sender's window. A sender that gives up may write there again, and the receiver must
// not take what it reads then for a result.
TEST(a_block_that_its_sender_has_taken_back_is_no_result) {
  MemoryStore store;
  std::atomic<bool> is_taken{false}, is_overwritten{false};
  const TestRegion regions[2];  // a rank that is a thread reads in the mapping of its peer
  run_threads(2, [&](int rank) {
    const TestRegion& region = regions[rank];
    auto config = test_config(rank, 2);
    config.regions = {region.region()};
    const auto c = Communicator::create(store, config);
    const auto window = region.span(0, 1000);
    const Error error = error_of([&] {
      Operation operation(*c, {.collective = 1, .count = 1000}, window,
                          Deadline::in(rank == 0 ? Milliseconds(300) : kLong));
      c->right().post(0, 1000);
      const std::byte* block = c->left().take(0, 1000);
      if (rank == 1) {
        is_taken = true;
        while (!is_overwritten) std::this_thread::sleep_for(Milliseconds(1));
        CHECK(block[999] == std::byte{0xff});
      }
      c->left().release();
      operation.finish();
    });
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(is_taken);
    std::ranges::fill(window, std::byte{0xff});
    is_overwritten = true;
  });
}

TEST(a_rank_that_leaves_is_not_waited_for) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 3));
    for (int i = 0; i < 20; ++i) run_operation(*c, 3);
    if (rank == 2) return;
    const Error error = error_of([&] { run_operation(*c, 1); });
    CHECK(error.code() == ErrorCode::peer_left);
    check_contains(error.what(), "rank 2 left group test while rank ");
    check_contains(error.what(), " waited for it to begin test_1(1 elements) (operation 21 of group test)");
  });
}

TEST(a_rank_that_leaves_says_why) {
  check_reason_of_leaving([](int rank) { return test_config(rank, 3); },
                          [](Communicator& c) { run_operation(c, 1); });
}

// A rank that leaves right behind its last operation takes nothing from those who are still in it.
TEST(leaving_behind_the_last_operation) {
  for (int round = 0; round < 30; ++round) {
    MemoryStore store;
    run_threads(3, [&](int rank) {
      auto c = Communicator::create(store, test_config(rank, 3));
      for (int i = 0; i <= round % 3; ++i) run_operation(*c, 5);
    });
  }
}

TEST(a_killed_rank_is_reported) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    FileStore store;
    const int victim = round % 3;
    const auto delay = random() % 20'000;
    Processes processes(3, [&](int rank) {
      auto c = Communicator::create(store, test_config(rank, 3));
      store.set("ready/" + std::to_string(rank), std::to_string(getpid()));
      const Error error = error_of([&] {
        while (true) run_operation(*c, 3);
      });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
      check_contains(error.what(), ") died while rank ");
    });
    for (int rank = 0; rank < 3; ++rank) store.get("ready/" + std::to_string(rank), Deadline::in(kLong));
    usleep(delay);
    kill(processes.pid(victim), SIGKILL);
    const auto start = Clock::now();
    processes.check_ends(victim);
    CHECK(Clock::now() - start < std::chrono::seconds(60));
  }
}

TEST(killed_while_the_group_forms) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    FileStore store;
    const auto delay = random() % 6'000;
    Processes processes(3, [&](int rank) {
      CommunicatorConfig config = test_config(rank, 3);
      config.timeout = Milliseconds(1500);
      try {
        auto c = Communicator::create(store, config);
        while (true) run_operation(*c, 1);
      } catch (const Error& error) {
        const ErrorCode code = error.code();
        CHECK(code == ErrorCode::peer_dead || code == ErrorCode::bootstrap || code == ErrorCode::timeout);
      }
    });
    usleep(delay);
    kill(processes.pid(round % 3), SIGKILL);
    processes.check_ends(round % 3);
  }
}

// From the moment that a rank has joined, its host sees it die, however long the timeout is.
TEST(killed_in_the_middle_of_the_hand_over) {
  const std::pair<int, const char*> points[] = {
      {1, "get table"}, {1, "set reach/"}, {0, "get reach/1"}, {0, "get reach/2"}, {2, "set reach/"}};
  for (const auto& [victim, where] : points) {
    FileStore store;
    const auto start = Clock::now();
    Processes processes(3, [&, victim = victim, where = where](int rank) {
      DeadlyStore deadly(store, rank == victim ? where : "");
      CommunicatorConfig config = test_config(rank, 3);
      config.timeout = kLong;
      const Error error = error_of([&] { Communicator::create(deadly, config); });
      check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
      CHECK(error.code() == ErrorCode::peer_dead);
    });
    processes.check_ends(victim);
    CHECK(Clock::now() - start < std::chrono::seconds(60));
  }
}

TEST(who_did_not_join_is_named) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 4);
    config.timeout = Milliseconds(300);
    const Error error = error_of([&] { Communicator::create(store, config); });
    CHECK(error.code() == ErrorCode::timeout);
    check_contains(error.what(), "rank 3 did not join group test within the timeout of 300 ms");
  });
  MemoryStore empty;
  CommunicatorConfig config = test_config(1, 2);
  config.timeout = Milliseconds(100);
  check_contains(error_of([&] { Communicator::create(empty, config); }).what(),
                 "rank 0 did not join group test within the timeout of 100 ms");
}

TEST(ranks_that_disagree_about_the_size) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    const Error error = error_of([&] { Communicator::create(store, test_config(rank, 2 + rank)); });
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(), "for 3 ranks");
    check_contains(error.what(), "for 2 ranks");
    check_contains(error.what(), "All ranks must make the same groups in the same order");
  });
}

TEST(a_forked_child_does_not_speak_for_its_parent) {
  FileStore store;
  run_processes(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    run_operation(*c, 2);
    const pid_t child = fork();
    if (child == 0) {
      c.reset();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    for (int i = 0; i < 50; ++i) run_operation(*c, 2);
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
