// What goes wrong with messages: who hears of it, and in which words.
#include <dirent.h>
#include <unistd.h>

#include <set>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/messages/message_failures.hpp"
#include "tests/native/transport/rounds.hpp"

namespace vccl {
namespace {

Error same_error(int size, const std::function<void(Communicator&)>& body) {
  return vccl::same_error(
      size, [&](Store& store, int rank) { return Communicator::create(store, test_config(rank, size)); },
      body);
}

int threads_of_this_process() {
  DIR* folder = opendir("/proc/self/task");
  int count = 0;
  while (readdir(folder)) ++count;
  closedir(folder);
  return count - 2;
}

/// The number without those that have ended: the system may remove a thread a moment after it was joined.
int threads_that_stay() {
  int seen = threads_of_this_process(), before;
  do {
    before = seen;
    usleep(20'000);
    seen = threads_of_this_process();
  } while (seen < before);
  return seen;
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(a_killed_rank_fails_those_who_wait_for_it) {
  for (const bool sending : {true, false}) {
    for (const bool any : {true, false}) {
      FileStore store;
      Processes processes(2, [&](int rank) {
        auto c = Communicator::create(store, test_config(rank, 2));
        std::vector<std::byte> large(1'000'000);
        if (rank == 1) {
          store.set("there", "1");
          wait_in_vain(*c, 0);
        }
        const Error error = error_of([&] {
          if (sending) send(*c, 1, 7, large).get();
          receive(*c, any ? kAnySource : 1, 7, large).get();
        });
        CHECK(error.code() == ErrorCode::peer_dead);
        check_contains(error.what(), "rank 1 (pid ");
        check_contains(error.what(), ") died while rank 0 waited for ");
        check_contains(error.what(), sending ? "rank 1 to receive test_9(1000000 elements) with tag 7"
                                     : any   ? "any source to send test_9(1000000 elements) with tag 7"
                                             : "rank 1 to send test_9(1000000 elements) with tag 7");
      });
      store.get("there", Deadline::in(kFar));
      usleep(30'000);
      kill(processes.pid(1), SIGKILL);
      processes.check_ends(1);
    }
  }
}

TEST(a_long_message_is_gone_with_its_sender) {
  for (const bool any : {false, true})
    take_from_a_dead_rank(
        [](Store& store, int rank) { return Communicator::create(store, test_config(rank, 2)); }, any,
        ") died while ");
}

TEST(killed_in_the_midst_of_traffic) {
  kill_in_the_midst(10, 11, [](Store& store, int rank, int, const TestRegion& region) {
    return join_with(store, rank, 3, region);
  });
}

TEST(what_a_killed_rank_had_sent_still_arrives) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::vector<std::byte> bytes(500);
    if (rank == 1) {
      fill(bytes, 1);
      send(*c, 0, 3, bytes).get();
      kill(getpid(), SIGKILL);
    }
    const Error error = error_of([&] { receive(*c, 1, 4, bytes).get(); });
    CHECK(error.code() == ErrorCode::peer_dead);
  });
  CHECK_EQ(processes.wait()[0], 0);
  FileStore other;
  Processes again(2, [&](int rank) {
    auto c = Communicator::create(other, test_config(rank, 2));
    std::vector<std::byte> bytes(500);
    if (rank == 1) {
      fill(bytes, 1);
      send(*c, 0, 3, bytes).get();
      other.set("sent", "1");
      kill(getpid(), SIGKILL);
    }
    other.get("sent", Deadline::in(kFar));
    CHECK_EQ(receive(*c, kAnySource, 3, bytes).get(), 1);
    check_content(bytes, 1);
    CHECK(!c->failed());
  });
  CHECK_EQ(again.wait()[0], 0);
}

TEST(a_forked_child_touches_nothing) {
  FileStore store;
  run_processes(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::byte out{rank == 0 ? std::byte{5} : std::byte{6}}, in{};
    Outcome received = receive(*c, 1 - rank, 0, {&in, 1});  // under way while it forks
    const pid_t child = fork();
    if (child == 0) {
      const Error error = error_of([&] { send(*c, 1 - rank, 0, {&in, 1}).get(); });
      c.reset();
      _exit(error.code() == ErrorCode::invalid ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    send(*c, 1 - rank, 0, {&out, 1}).get();
    CHECK_EQ(received.get(), 1 - rank);
    CHECK(in == (rank == 0 ? std::byte{6} : std::byte{5}));
  });
}

TEST(a_mismatch_names_both_sides) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100'000}}) {
    for (const bool any : {false, true}) {
      const Error error = same_error(2, [&](Communicator& c) {
        std::vector<std::byte> memory(bytes + static_cast<std::size_t>(c.rank()));
        if (c.rank() == 0) {
          send(c, 1, 6, memory).get();
          wait_in_vain(c, 1);
        }
        receive(c, any ? kAnySource : 0, 6, memory).get();
      });
      CHECK(error.code() == ErrorCode::mismatch);
      CHECK_EQ(std::string(error.what()), mismatch_text(1, bytes, bytes + 1, any));
    }
  }
}

TEST(every_field_of_a_signature_counts) {
  const Signature signatures[] = {{.collective = 1}, {.dtype = 1}, {.op = 1},
                                  {.root = 0},       {.count = 1}, {.extra = 1}};
  for (const Signature& other : signatures) {
    MemoryStore store;
    auto c = Communicator::create(store, test_config(0, 1));
    Outcome sent, received;
    c->messages().receive(0, 0, {}, {}, Deadline::in(kFar), received.done());
    c->messages().send(0, 0, other, {}, Deadline::in(kFar), sent.done());
    CHECK(error_of([&] { received.get(); }).code() == ErrorCode::mismatch);
    CHECK(c->failed());
  }
}

TEST(a_receive_that_times_out) {
  const Error error = same_error(2, [&](Communicator& c) {
    std::vector<std::byte> bytes(16);
    if (c.rank() == 1) {
      send(c, 0, 3, bytes).get();
      send(c, 0, 3, bytes).get();
      send(c, 0, {9, true}, bytes).get();
      wait_in_vain(c, 0);
    }
    receive(c, 1, 5, bytes, Milliseconds(3'000)).get();
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(
      error.what(),
      "rank 0 waited 3 s for rank 1 to send test_9(16 elements) with tag 5 in group test; of what has "
      "come from there and not been received: 2 with tag 3, 1 with tag 9 of cards; rank 1 waits in recv "
      "from ");
  check_contains(error.what(), ". Look for ");
}

TEST(a_receive_of_the_other_kind_times_out) {
  const Error error = same_error(2, [&](Communicator& c) {
    std::byte byte{};
    if (c.rank() == 1) {
      send(c, 0, {3, true}, {&byte, 1}).get();
      wait_in_vain(c, 0);
    }
    receive(c, 1, 3, {&byte, 1}, Milliseconds(3'000)).get();
  });
  check_contains(error.what(),
                 "and not been received: 1 with tag 3 of cards (what a card sends is received on a card, and "
                 "what the CPU sends on the CPU); ");
}

TEST(a_receive_from_any_source_that_times_out) {
  const Error error = same_error(3, [&](Communicator& c) {
    if (c.rank() != 0) wait_in_vain(c, 0);
    std::byte byte{};
    receive(c, kAnySource, 5, {&byte, 1}, Milliseconds(100)).get();
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(),
                 "rank 0 waited 100 ms for any source to send test_9(1 elements) with tag 5 in group "
                 "test. Look for ");
}

TEST(a_send_that_times_out) {
  const Error error = same_error(2, [&](Communicator& c) {
    std::vector<std::byte> large(100'000);
    if (c.rank() == 1) wait_in_vain(c, 0);
    send(c, 1, 5, large, Milliseconds(150)).get();
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(),
                 "rank 0 waited 150 ms for rank 1 to receive test_9(100000 elements) with tag 5");
}

TEST(an_abort_ends_what_is_under_way) {
  abort_in_the_midst(
      [](Store& store, int rank) { return Communicator::create(store, test_config(rank, 3)); });
}

TEST(a_collective_that_fails_ends_what_is_under_way) {
  const Error error = same_error(2, [&](Communicator& c) {
    std::byte byte{};
    Outcome received = receive(c, 1 - c.rank(), 6, {&byte, 1});
    error_of([&] {
      Operation operation(c, {.collective = 1, .count = static_cast<std::uint64_t>(c.rank())}, {},
                          Deadline::in(kFar));
    });
    received.get();
  });
  CHECK(error.code() == ErrorCode::mismatch);
}

TEST(a_message_that_fails_ends_the_collective) {
  const Error error = same_error(2, [&](Communicator& c) {
    std::byte byte{};
    if (c.rank() == 1) {
      Operation operation(c, {.collective = 1}, {}, Deadline::in(kFar));
    }
    receive(c, 1, 6, {&byte, 1}, Milliseconds(100)).get();
  });
  CHECK(error.code() == ErrorCode::timeout);
}

TEST(a_rank_that_leaves_is_not_waited_for) {
  leave_with_a_reason(
      [](Store& store, int rank) { return Communicator::create(store, test_config(rank, 2)); });
}

TEST(any_source_waits_while_there_is_one_left) {
  MemoryStore store;
  std::promise<void> gone;
  run_threads(3, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 3));
    std::byte byte{};
    if (rank == 1) {
      c.reset();
      gone.set_value();
    } else if (rank == 2) {
      gone.get_future().get();
      usleep(150'000);
      send(*c, 0, 5, {&byte, 1}).get();
    } else {
      CHECK_EQ(receive(*c, kAnySource, 5, {&byte, 1}).get(), 2);
      CHECK(!c->failed());
    }
  });
}

TEST(destruction_ends_what_is_under_way) {
  MemoryStore store;
  const int before = threads_that_stay();
  for (int i = 0; i < 20; ++i) {
    auto c = Communicator::create(store, test_config(0, 1));
    std::vector<std::byte> large(100'000);
    Outcome sent = send(*c, 0, 5, large), received = receive(*c, 0, 6, large);
    CHECK(threads_of_this_process() > before);
    c.reset();
    for (Outcome* outcome : {&sent, &received}) {
      CHECK(outcome->is_there());
      const Error error = error_of([&] { outcome->get(); });
      CHECK(error.code() == ErrorCode::aborted);
      CHECK_EQ(std::string(error.what()), "rank 0 left group test with 1 sends and 1 receives under way");
    }
  }
  CHECK_EQ(threads_that_stay(), before);
}

TEST(destruction_in_the_midst_of_copies) {
  for (int round = 0; round < 20; ++round) {
    MemoryStore store;
    // Threads share a mapping: it stays until both have left.
    TestRegion regions[2] = {TestRegion(64 << 20), TestRegion(64 << 20)};
    run_threads(2, [&](int rank) {
      TestRegion& region = regions[rank];
      auto c = join_with(store, rank, 2, region);
      TestMemory memory(region);
      std::vector<Outcome> all;
      for (int i = 0; i < 4; ++i) {
        const auto out = memory.get(4'000'000, i % 2 == 0), in = memory.get(4'000'000, i % 3 == 0);
        all.push_back(send(*c, 1 - rank, i, out));
        all.push_back(receive(*c, 1 - rank, i, in));
      }
      usleep(static_cast<useconds_t>(round * 200));
      if (rank == 0) c.reset();
      for (Outcome& outcome : all) {
        try {
          outcome.get();
        } catch (const Error& error) {
          // Rank 0 may hear what rank 1 says about it.
          CHECK(error.code() == ErrorCode::peer_left || (rank == 0 && error.code() == ErrorCode::aborted));
        }
      }
    });
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
