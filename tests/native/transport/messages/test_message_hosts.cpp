// Messages between ranks of several (pretended) hosts, beside messages within a host.
#include <dirent.h>

#include <atomic>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/messages/message_failures.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/messages/message_peer.hpp"

namespace vccl {
namespace {

constexpr std::size_t kRegion = std::size_t{512} << 20;  // sparse
constexpr std::size_t kShort = MessagePeer::kShortBytes;

/// `hosts[rank]` is the host of a rank.
std::unique_ptr<Communicator> join(Store& store, int rank, const std::string& hosts,
                                   const TestRegion* region = nullptr) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.host_id = std::string(1, hosts[static_cast<std::size_t>(rank)]);
  if (region) config.regions = {region->region()};
  return Communicator::create(store, config);
}

int size_of(const std::string& hosts) {
  return static_cast<int>(hosts.size());
}

void traffic(Store& store, int rank, const std::string& hosts, int messages, std::uint64_t seed, bool large) {
  TestRegion region(kRegion);
  auto c = join(store, rank, hosts, &region);
  for (std::uint64_t round = 0; round < 3; ++round) {
    run_traffic(*c, region, plan_traffic(size_of(hosts), messages, seed + round, large), seed + round);
  }
  CHECK(!c->failed());
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(random_messages_between_processes) {
  for (const std::string hosts : {"ab", "aab", "abab", "abcb"}) {
    FileStore store;
    run_processes(size_of(hosts),
                  [&](int rank) { traffic(store, rank, hosts, 80 * size_of(hosts), 3000, true); });
    CHECK_EQ(store.keys(), 1u);  // the identity
  }
}

TEST(killed_in_the_midst_of_traffic) {
  const auto hosts_of = [](int round) { return round % 2 ? "aab" : "abc"; };
  kill_in_the_midst(8, 12, [&](Store& store, int rank, int round, const TestRegion& region) {
    return join(store, rank, hosts_of(round), &region);
  });
}

TEST(a_killed_rank_fails_those_who_wait_for_it) {
  for (const std::string what : {"send", "receive", "any", "midst"}) {
    FileStore store;
    Processes processes(2, [&](int rank) {
      auto c = join(store, rank, "ab");
      std::vector<std::byte> large(30'000'000);
      if (rank == 1) {
        Outcome part = send(*c, 0, 1, {large.data(), 2});
        // "midst": killed while its bytes come.
        if (what == "midst") send(*c, 0, 7, large).get();
        receive(*c, 0, 1234, large).get();
      }
      CHECK_EQ(receive(*c, 1, 1, {large.data(), 2}).get(), 1);
      store.set("there", "1");
      const Error error = error_of([&] {
        if (what == "send") send(*c, 1, 7, large).get();
        receive(*c, what == "any" ? kAnySource : 1, 7, large).get();
        receive(*c, 1, 8, large).get();
      });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "the connection of rank 0 to rank 1 (tcp://127.0.0.1:");
      check_contains(error.what(), ") ended while rank 0 waited for ");
      CHECK(c->failed());
    });
    store.get("there", Deadline::in(kFar));
    usleep(30'000);
    kill(processes.pid(1), SIGKILL);
    processes.check_ends(1);
  }
}

TEST(a_long_message_is_gone_with_its_sender) {
  for (const bool any : {false, true})
    take_from_a_dead_rank([](Store& store, int rank) { return join(store, rank, "ab"); }, any,
                          ") ended while ");
}

// Nobody had spoken to it before it was killed.
TEST(a_killed_rank_that_nobody_knew) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    store.set(rank == 0 ? "there 0" : "there 1", "1");
    if (rank == 1) pause();
    store.get("killed", Deadline::in(kFar));
    std::byte byte{};
    const Error error = error_of([&] { receive(*c, 1, 0, {&byte, 1}).get(); });
    CHECK(error.code() == ErrorCode::peer_dead);
    check_contains(error.what(), "rank 0 could not connect to rank 1 (tcp://127.0.0.1:");
    check_contains(error.what(), "while rank 0 waited for rank 1 to send test_9(1 elements) with tag 0");
  });
  // Rank 0 may need rank 1 until it has joined, too.
  store.get("there 0", Deadline::in(kFar));
  store.get("there 1", Deadline::in(kFar));
  processes.kill_and_wait(1);
  store.set("killed", "1");
  CHECK_EQ(processes.wait()[0], 0);
}

// It neither reads nor closes anything: the deadline ends the wait, and closing the links does not wait for
// it.
TEST(a_stopped_peer_holds_nobody_up) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    auto large = std::make_unique<std::vector<std::byte>>(100'000'000);
    if (rank == 1) {
      Outcome received = receive(*c, 0, 7, *large);
      store.set("there", "1");
      received.get();
    }
    store.get("there", Deadline::in(kFar));
    Outcome sent = send(*c, 1, 7, *large, Milliseconds(1'000));
    store.set("sends", "1");
    const Error error = error_of([&] { sent.get(); });
    // What the message lay in is the caller's again.
    large.reset();
    CHECK(error.code() == ErrorCode::timeout);
    check_contains(error.what(), "rank 0 waited 1 s for rank 1 to receive test_9(100000000 elements)");
    c.reset();
    store.set("over", "1");
  });
  store.get("sends", Deadline::in(kFar));
  kill(processes.pid(1), SIGSTOP);
  store.get("over", Deadline::in(kFar));
  kill(processes.pid(1), SIGKILL);
  CHECK_EQ(processes.wait()[0], 0);
}

TEST(a_forked_child_touches_nothing) {
  FileStore store;
  run_processes(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    std::byte out{rank == 0 ? std::byte{5} : std::byte{6}}, in{};
    Outcome received = receive(*c, 1 - rank, 0, {&in, 1});  // under way while it forks
    const pid_t child = fork();
    if (child == 0) {
      c.reset();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    send(*c, 1 - rank, 0, {&out, 1}).get();
    CHECK_EQ(received.get(), 1 - rank);
    CHECK(in == (rank == 0 ? std::byte{6} : std::byte{5}));
    // So that neither leaves before the other has received.
    send(*c, 1 - rank, 1, {&out, 1}).get();
    receive(*c, 1 - rank, 1, {&in, 1}).get();
  });
}

int entries(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

TEST(nothing_is_left_behind) {
  int threads = 0, descriptors = 0;
  for (int round = 0; round < 12; ++round) {
    MemoryStore store;
    std::atomic<int> through{0};
    run_threads(3, [&](int rank) {
      auto c = join(store, rank, "aab");
      std::vector<std::byte> out(100'000), in(100'000);
      for (int peer = 0; peer < 3; ++peer) {
        Outcome sent = send(*c, peer, 1, out);
        receive(*c, peer, 1, in).get();
        sent.get();
      }
      // Whoever fails or leaves must not disturb the others' messages.
      ++through;
      const Deadline patience = Deadline::in(kFar);
      while (through < 3 && !patience.passed()) usleep(200);
      if (round % 3 == 1) error_of([&] { receive(*c, kAnySource, 2, in, Milliseconds(20)).get(); });
      if (round % 3 == 2) {
        send(*c, 2, 5, out);
        receive(*c, 2, 6, in);
      }
      c.reset();  // before the memory
    });
    if (round != 2) continue;
    usleep(20'000);  // a thread is still listed for a moment after it was joined
    threads = entries("/proc/self/task");
    descriptors = entries("/proc/self/fd");
  }
  const Deadline patience = Deadline::in(kFar);
  while (entries("/proc/self/task") != threads && !patience.passed()) usleep(1000);
  CHECK_EQ(entries("/proc/self/task"), threads);
  CHECK_EQ(entries("/proc/self/fd"), descriptors);
}

TEST(random_messages_between_threads) {
  for (const std::string hosts : {"ab", "aabb", "abcba"}) {
    MemoryStore store;
    run_threads(size_of(hosts),
                [&](int rank) { traffic(store, rank, hosts, 60 * size_of(hosts), 4000, false); });
    CHECK_EQ(store.keys(), 1u);  // the identity
  }
}

TEST(beside_collectives) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    TestRegion region(kRegion), blocks;
    auto c = join(store, rank, "aab", &region);
    std::exception_ptr wrong;
    std::thread collectives([&] {
      try {
        check_rounds(*c, blocks);
      } catch (...) {
        wrong = std::current_exception();
      }
    });
    run_traffic(*c, region, plan_traffic(3, 150, 78, true), 78);
    collectives.join();
    if (wrong) std::rethrow_exception(wrong);
  });
}

TEST(large_messages_both_ways) {
  constexpr std::size_t kBytes = 20'000'003;
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = join(store, rank, "abc");
    std::vector<std::byte> out(kBytes);
    fill(out, static_cast<std::uint64_t>(rank));
    std::vector<Outcome> sends, receives;
    std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(kBytes));
    for (int peer = 0; peer < 3; ++peer) {
      sends.push_back(send(*c, peer, 5, out));
      receives.push_back(receive(*c, peer, 5, in[static_cast<std::size_t>(peer)]));
    }
    for (int peer = 0; peer < 3; ++peer) {
      CHECK_EQ(receives[static_cast<std::size_t>(peer)].get(), peer);
      check_content(in[static_cast<std::size_t>(peer)], static_cast<std::uint64_t>(peer));
    }
    for (Outcome& sent : sends) sent.get();
  });
}

TEST(a_tag_waits_for_no_other) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    // Sent in this order, received in reverse.
    const std::size_t sizes[] = {3'000'000, 5, kShort + 1, kShort, 200'000, 0};
    std::vector<std::vector<std::byte>> memory;
    std::vector<Outcome> sends;
    for (int tag = 0; tag < 6; ++tag) {
      fill(memory.emplace_back(sizes[tag]), static_cast<std::uint64_t>(tag));
      sends.push_back(send(*c, 1 - rank, tag, memory.back()));
    }
    for (int tag = 5; tag >= 0; --tag) {
      std::vector<std::byte> bytes(sizes[tag]);
      CHECK_EQ(receive(*c, 1 - rank, tag, bytes).get(), 1 - rank);
      check_content(bytes, static_cast<std::uint64_t>(tag));
    }
    for (Outcome& sent : sends) sent.get();
  });
}

TEST(messages_of_cards_and_of_the_cpu_do_not_meet) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    exchange_by_kind(*c);
  });
}

TEST(thousands_that_nobody_has_asked_for) {
  constexpr int kMessages = 4000;
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    std::byte token{};
    const auto length = [](int i) { return static_cast<std::size_t>(i % 97) * 9; };
    if (rank == 0) {
      std::vector<std::vector<std::byte>> all;
      std::vector<Outcome> sends;
      for (int i = 0; i < kMessages; ++i) {
        fill(all.emplace_back(length(i)), static_cast<std::uint64_t>(i));
        sends.push_back(send(*c, 1, i % 7, all.back()));
      }
      // More than there is room for: the rest waits until somebody asks.
      send(*c, 1, 99, {&token, 1}).get();
      for (Outcome& sent : sends) sent.get();
    } else {
      receive(*c, 0, 99, {&token, 1}).get();
      for (int tag = 6; tag >= 0; --tag) {
        for (int i = tag; i < kMessages; i += 7) {
          std::vector<std::byte> bytes(length(i));
          receive(*c, 0, tag, bytes).get();
          check_content(bytes, static_cast<std::uint64_t>(i));
        }
      }
    }
  });
}

// The receiver uses its messages for the first time when the sender has gone.
TEST(a_short_send_needs_no_receiver) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, kShort}) {
    MemoryStore store;
    std::promise<void> left;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank, "ab");
      std::vector<std::byte> memory(bytes);
      if (rank == 0) {
        fill(memory, 3);
        send(*c, 1, 0, memory).get();
        c.reset();
        left.set_value();
        return;
      }
      left.get_future().get();
      CHECK_EQ(receive(*c, kAnySource, 0, memory).get(), 0);
      check_content(memory, 3);
      const Error error = error_of([&] { receive(*c, 0, 1, memory).get(); });
      CHECK(error.code() == ErrorCode::peer_left);
    });
  }
}

// The sender hears that its last message has come, though the receiver leaves at once.
TEST(a_receiver_that_leaves_at_once) {
  for (int round = 0; round < 5; ++round) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank, "ab");
      std::vector<std::byte> memory(2'000'000);
      if (rank == 0) {
        send(*c, 1, 0, memory).get();
        CHECK(!c->failed());
      } else {
        receive(*c, kAnySource, 0, memory).get();
      }
    });
  }
}

TEST(any_source_over_both) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = join(store, rank, "aab");
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{500'000}}) {
      const int tag = static_cast<int>(bytes);
      std::vector<std::byte> memory(bytes);
      if (rank != 0) {
        fill(memory, static_cast<std::uint64_t>(rank));
        for (int i = 0; i < 10; ++i) send(*c, 0, tag, memory).get();
        continue;
      }
      int counts[3] = {};
      for (int i = 0; i < 20; ++i) {
        const int source = receive(*c, kAnySource, tag, memory).get();
        check_content(memory, static_cast<std::uint64_t>(source));
        ++counts[source];
      }
      CHECK_EQ(counts[1], 10);
      CHECK_EQ(counts[2], 10);
    }
    // Nobody leaves before rank 0 has everything.
    std::byte token{};
    if (rank == 0) {
      for (int peer : {1, 2}) send(*c, peer, 4, {&token, 1}).get();
    } else {
      receive(*c, 0, 4, {&token, 1}).get();
    }
  });
}

TEST(many_callers_of_one_communicator) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    run_threads(4, [&](int caller) {
      for (int i = 0; i < 60; ++i) {
        std::vector<std::byte> out(static_cast<std::size_t>(i) * 337), in(out.size());
        const auto seed = [&](int from) {
          return static_cast<std::uint64_t>(from * 1000 + caller * 200 + i);
        };
        fill(out, seed(rank));
        Outcome sent = send(*c, 1 - rank, caller, out);
        CHECK_EQ(receive(*c, 1 - rank, caller, in).get(), 1 - rank);
        sent.get();
        check_content(in, seed(1 - rank));
      }
    });
  });
}

Error same_error(const std::string& hosts, const std::function<void(Communicator&)>& body) {
  return vccl::same_error(
      size_of(hosts), [&](Store& store, int rank) { return join(store, rank, hosts); }, body);
}

// Rank 0 has not spoken to rank 2 before, and finds nobody there. Rank 1, its neighbour on the ring, has told
// why.
TEST(a_refused_connection_is_no_cause) {
  MemoryStore store;
  run_threads(4, [&](int rank) {
    auto c = join(store, rank, "abcd");
    store.set("through/" + std::to_string(rank), "");
    for (int other = 0; other < 4; ++other) store.get("through/" + std::to_string(other), Deadline::in(kFar));
    const Deadline patience = Deadline::in(kFar);
    if (rank == 1) {
      c->abort("the user pressed a button");
      store.get("over", Deadline::in(kFar));
    } else if (rank == 2) {
      c->messages();
      while (!c->failed() && !patience.passed()) {
        c->look_around();
        usleep(1000);
      }
      c.reset();
      store.set("gone", "1");
    } else if (rank == 0) {
      store.get("gone", Deadline::in(kFar));
      std::byte byte{};
      const Error error = error_of([&] { receive(*c, 2, 5, {&byte, 1}).get(); });
      store.set("over", "1");
      CHECK_EQ(std::string(error.what()), "rank 1 aborted group test: the user pressed a button");
      CHECK(error.code() == ErrorCode::aborted);
    } else {
      store.get("over", Deadline::in(kFar));
    }
  });
}

TEST(a_message_that_fails_ends_the_collective) {
  const Error error = same_error("ab", [&](Communicator& c) {
    std::byte byte{};
    if (c.rank() == 1) {
      Operation operation(c, {.collective = 1}, {}, Deadline::in(kFar));
      c.left().take_committed(1);
    }
    receive(c, 1, 6, {&byte, 1}, Milliseconds(100)).get();
  });
  CHECK(error.code() == ErrorCode::timeout);
}

TEST(an_abort_ends_what_is_under_way) {
  abort_in_the_midst([](Store& store, int rank) { return join(store, rank, "abb"); });
}

TEST(a_rank_that_leaves_is_not_waited_for) {
  leave_with_a_reason([](Store& store, int rank) { return join(store, rank, "ab"); });
}

// The one who leaves never used its messages.
TEST(a_rank_that_leaves_unheard) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    if (rank == 1) {
      store.get("waits", Deadline::in(kFar));
      usleep(30'000);
      return;
    }
    std::byte byte{};
    Outcome in_vain = receive(*c, 1, 5, {&byte, 1});
    store.set("waits", "1");
    const Error error = error_of([&] { in_vain.get(); });
    CHECK(error.code() == ErrorCode::peer_left);
    check_contains(error.what(), "rank 1 left group test while rank 0 waited for rank 1 to send");
  });
}

TEST(destruction_ends_what_is_under_way) {
  for (int round = 0; round < 10; ++round) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank, "ab");
      std::vector<Outcome> all;
      std::vector<std::vector<std::byte>> memory(8, std::vector<std::byte>(4'000'000));
      for (std::size_t i = 0; i < 4; ++i) {
        all.push_back(send(*c, 1 - rank, static_cast<int>(i), memory[i]));
        all.push_back(receive(*c, 1 - rank, static_cast<int>(i), memory[4 + i]));
      }
      usleep(static_cast<useconds_t>(round * 1500));
      if (rank == 0) c.reset();
      for (Outcome& outcome : all) {
        try {
          outcome.get();
        } catch (const Error& error) {
          // Rank 0 may hear what rank 1 says about it. Rank 1 may find a listener that is closed, or a
          // connection that ends before rank 0's last word has come through: then nobody can tell leaving
          // from dying.
          const auto other = rank == 0 ? ErrorCode::aborted : ErrorCode::peer_dead;
          CHECK(error.code() == ErrorCode::peer_left || error.code() == other);
        }
      }
    });
  }
}

TEST(a_receive_on_another_host_is_not_known_to_have_begun) {
  MemoryStore store;
  const MessageTag tag(MessageTag::kNoneAlone, true);
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, "ab");
    std::vector<std::byte> bytes(100);
    if (rank == 1) {
      auto received = receive(*c, 0, tag, bytes);
      store.set("begun", "1");
      received.get();
      return;
    }
    store.get("begun", Deadline::in(kFar));
    CHECK(!c->messages().meets_receive(1, tag));
    send(*c, 1, tag, bytes).get();
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
