// Messages between the ranks of one host: what arrives, where, in which order.
#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/rounds.hpp"

namespace vccl {
namespace {

constexpr std::size_t kRegion = std::size_t{512} << 20;  // sparse

void traffic(Store& store, int rank, int size, int messages, std::uint64_t seed, bool large) {
  TestRegion region(kRegion);
  auto c = join_with(store, rank, size, region);
  for (std::uint64_t round = 0; round < 3; ++round) {
    run_traffic(*c, region, plan_traffic(size, messages, seed + round, large), seed + round);
  }
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(random_messages_between_processes) {
  for (int size : {2, 3, 4}) {
    FileStore store;
    run_processes(size, [&](int rank) { traffic(store, rank, size, 120 * size, 1000 + size, true); });
  }
}

TEST(random_messages_between_threads) {
  for (int size : {1, 2, 3, 5}) {
    MemoryStore store;
    run_threads(size, [&](int rank) { traffic(store, rank, size, 100 * size, 2000 + size, false); });
  }
}

TEST(beside_collectives) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    TestRegion region(kRegion), blocks;
    CommunicatorConfig config = test_config(rank, 3);
    config.regions = {region.region(), blocks.region()};
    auto c = Communicator::create(store, config);
    std::exception_ptr wrong;
    std::thread collectives([&] {
      try {
        check_rounds(*c, blocks);
        for (std::size_t i = 0; i < 40; ++i) pass_window(*c, blocks.span(i, kWindow));
      } catch (...) {
        wrong = std::current_exception();
      }
    });
    run_traffic(*c, region, plan_traffic(3, 300, 77, true), 77);
    collectives.join();
    if (wrong) std::rethrow_exception(wrong);
  });
}

TEST(many_callers_of_one_communicator) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    run_threads(4, [&](int caller) {
      for (int i = 0; i < 200; ++i) {
        std::vector<std::byte> out(static_cast<std::size_t>(i) * 37), in(out.size());
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

TEST(a_tag_waits_for_no_other) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    TestRegion region(1 << 24);
    auto c = join_with(store, rank, 2, region);
    // Sent in this order, received in reverse: whatever the size, none keeps another back.
    const std::size_t sizes[] = {3'000'000, 5, 4097, 4096, 200'000};
    TestMemory memory(region);
    for (bool on_card : {true, false}) {
      std::vector<Outcome> sends;
      for (int tag = 0; tag < 5 && rank == 0; ++tag) {
        const auto bytes = memory.get(sizes[tag], on_card);
        fill(bytes, static_cast<std::uint64_t>(tag));
        sends.push_back(send(*c, 1, tag, bytes));
      }
      for (int tag = 4; tag >= 0 && rank == 1; --tag) {
        std::vector<std::byte> bytes(sizes[tag]);
        CHECK_EQ(receive(*c, 0, tag, bytes).get(), 0);
        check_content(bytes, static_cast<std::uint64_t>(tag));
      }
      for (Outcome& sent : sends) sent.get();
    }
  });
}

TEST(messages_of_cards_and_of_the_cpu_do_not_meet) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    exchange_by_kind(*c);
  });
}

TEST(thousands_that_nobody_has_asked_for) {
  constexpr int kMessages = 5000;
  FileStore store;
  run_processes(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::byte token{};
    if (rank == 0) {
      std::vector<std::vector<std::byte>> all;
      std::vector<Outcome> sends;
      for (int i = 0; i < kMessages; ++i) {
        fill(all.emplace_back(static_cast<std::size_t>(i % 97)), static_cast<std::uint64_t>(i));
        sends.push_back(send(*c, 1, i % 7, all.back()));
      }
      // The channel cannot hold them: rank 1 takes them in because it waits for something else.
      for (Outcome& sent : sends) sent.get();
      send(*c, 1, 99, {&token, 1}).get();
    } else {
      receive(*c, 0, 99, {&token, 1}).get();
      for (int tag = 6; tag >= 0; --tag) {
        for (int i = tag; i < kMessages; i += 7) {
          std::vector<std::byte> bytes(static_cast<std::size_t>(i % 97));
          receive(*c, 0, tag, bytes).get();
          check_content(bytes, static_cast<std::uint64_t>(i));
        }
      }
    }
  });
}

// Its thread sleeps with nothing under way; a sender whose channel fills up has to be able to wake it.
TEST(an_idle_rank_takes_in_what_comes) {
  MemoryStore store;
  std::promise<void> sent_all;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::byte token{};
    std::vector<std::byte> message(4000);
    if (rank == 1) {
      // Left under way for a moment, so that there is a thread.
      Outcome first = receive(*c, 0, 1, {&token, 1});
      send(*c, 0, 1, {&token, 1}).get();
      first.get();
      sent_all.get_future().get();
      for (int i = 0; i < 200; ++i) receive(*c, 0, 2, message).get();
    } else {
      receive(*c, 1, 1, {&token, 1}).get();
      usleep(20'000);
      send(*c, 1, 1, {&token, 1}).get();
      for (int i = 0; i < 200; ++i) send(*c, 1, 2, message).get();
      sent_all.set_value();
    }
  });
}

TEST(both_send_first) {
  FileStore store;
  run_processes(3, [&](int rank) {
    TestRegion region(64 << 20);
    auto c = join_with(store, rank, 3, region);
    for (bool on_card : {true, false}) {
      TestMemory memory(region);
      const auto out = memory.get(6'000'001, on_card);
      fill(out, static_cast<std::uint64_t>(rank));
      std::vector<Outcome> sends;
      for (int peer = 0; peer < 3; ++peer) sends.push_back(send(*c, peer, 5, out));
      for (int peer = 0; peer < 3; ++peer) {
        std::vector<std::byte> in(out.size());
        receive(*c, peer, 5, in).get();
        check_content(in, static_cast<std::uint64_t>(peer));
      }
      for (Outcome& sent : sends) sent.get();
    }
  });
}

TEST(a_short_send_needs_no_receiver) {
  MemoryStore store;
  std::promise<void> sent;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::vector<std::byte> bytes(4096);
    if (rank == 0) {
      fill(bytes, 3);
      Outcome outcome = send(*c, 1, 0, bytes);
      CHECK(outcome.is_there());  // within the call
      outcome.get();
      sent.set_value();
      return;  // and leaves: what it sent stays
    }
    sent.get_future().get();
    usleep(20'000);
    Outcome outcome = receive(*c, kAnySource, 0, bytes);
    CHECK(outcome.is_there());
    CHECK_EQ(outcome.get(), 0);
    check_content(bytes, 3);
  });
}

TEST(receives_take_turns) {
  MemoryStore store;
  auto c = Communicator::create(store, test_config(0, 1));
  std::byte a{}, b{}, d{}, out[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  Outcome first = receive(*c, kAnySource, 4, {&a, 1});
  Outcome second = receive(*c, 0, 4, {&b, 1});
  Outcome other = receive(*c, 0, 5, {&d, 1});
  for (std::byte& byte : out) send(*c, 0, &byte == &out[1] ? 5 : 4, {&byte, 1}).get();
  for (Outcome* outcome : {&first, &second, &other}) CHECK_EQ(outcome->get(), 0);
  CHECK(a == std::byte{1} && b == std::byte{3} && d == std::byte{2});
}

TEST(calls_from_within_done) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::promise<int> end;
    std::byte in{}, out{};
    int rounds = 0;
    std::function<void(int, const Error*)> next = [&](int, const Error* error) {
      if (error || ++rounds == 300) {
        end.set_value(error ? -1 : rounds);
        return;
      }
      c->messages().receive(1 - rank, 0, {}, {&in, 1}, Deadline::in(kFar), next);
      c->messages().send(1 - rank, 0, {}, {&out, 1}, Deadline::in(kFar), [](int, const Error*) {});
    };
    next(0, nullptr);
    CHECK_EQ(end.get_future().get(), 300);
  });
}

// Each message is already there when the one before it has been received.
TEST(a_long_chain_of_calls_from_within_done) {
  constexpr int kMessages = 200'000;
  MemoryStore store;
  auto c = Communicator::create(store, test_config(0, 1));
  std::byte byte{};
  std::vector<Outcome> sends;  // more than a rank keeps: they are done as receives are called
  for (int i = 0; i < kMessages; ++i) sends.push_back(send(*c, 0, 1, {&byte, 0}));
  std::promise<int> end;
  int received = 0;
  std::function<void(int, const Error*)> next = [&](int, const Error* error) {
    if (error || ++received == kMessages) {
      end.set_value(error ? -1 : received);
      return;
    }
    c->messages().receive(0, 1, {.collective = 9}, {&byte, 0}, Deadline::in(kFar), next);
  };
  c->messages().receive(0, 1, {.collective = 9}, {&byte, 0}, Deadline::in(kFar), next);
  CHECK_EQ(end.get_future().get(), kMessages);
  for (Outcome& sent : sends) sent.get();
}

TEST(ranks_that_are_not_there) {
  MemoryStore store;
  auto c = Communicator::create(store, test_config(0, 1));
  std::byte byte{};
  const Error sent = error_of([&] { send(*c, 1, 0, {&byte, 1}).get(); });
  CHECK(sent.code() == ErrorCode::invalid);
  check_contains(sent.what(), "rank 0 sends to rank 1 of group test, which has 1 ranks");
  const Error received = error_of([&] { receive(*c, -2, 0, {&byte, 1}).get(); });
  CHECK(received.code() == ErrorCode::invalid);
  CHECK(!c->failed());
}

}  // namespace
}  // namespace vccl

TEST_MAIN
