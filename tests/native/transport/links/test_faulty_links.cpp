// Faults of links on purpose: what libzmq sends is thrown away, kept or lost, connections are reset, and none
// are made. Ranks on two hosts get right bytes, or an error that names the other rank.
#include <sys/socket.h>

#include <barrier>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/link_faults.hpp"

namespace vccl {
namespace {

std::unique_ptr<Communicator> rank_on_host(Store& store, int rank, const std::string& hosts,
                                           TestRegion& region) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.host_id = hosts.substr(static_cast<std::size_t>(rank), 1);
  config.regions = {region.region()};
  return Communicator::create(store, config);
}

// VCCL_LINK_TIMEOUT where a link is to be lost. Before that, ranks on a busy machine must not be silent for
// so many seconds.
constexpr const char* kShort = "8";

/// Long and short blocks, and messages of all lengths.
void pass_everything(Communicator& c, TestRegion& region, std::uint64_t seed) {
  std::vector<std::byte> window(kWindow);
  for (int round = 0; round < 3; ++round) {
    pass_window(c, window);
    pass_committed(c, 11);
    pass_window(c, std::span(window).first(700));
  }
  run_traffic(c, region, plan_traffic(c.size(), 30, seed, true), seed);
}

void check_struck(const std::string& why_not) {
  CHECK_EQ(why_not, std::string());
}

/// Ranks, each on a thread, pass everything. Then strike() is called, once for all, and body() for each.
void with_threads(const std::string& hosts, const char* timeout, const std::function<std::string()>& strike,
                  const std::function<void(Communicator&, TestRegion&)>& body) {
  setenv("VCCL_LINK_TIMEOUT", timeout, 1);
  MemoryStore store;
  std::string why_not;
  std::barrier ready(static_cast<std::ptrdiff_t>(hosts.size()), [&]() noexcept { why_not = strike(); });
  std::barrier done(static_cast<std::ptrdiff_t>(hosts.size()), []() noexcept { link_faults::heal(); });
  run_threads(static_cast<int>(hosts.size()), [&](int rank) {
    TestRegion region(std::size_t{64} << 20);
    auto c = rank_on_host(store, rank, hosts, region);
    pass_everything(*c, region, 1);
    ready.arrive_and_wait();
    std::exception_ptr wrong;
    try {
      check_struck(why_not);
      body(*c, region);
    } catch (...) {
      wrong = std::current_exception();
    }
    done.arrive_and_wait();
    if (wrong) std::rethrow_exception(wrong);
  });
}

/// Every rank has to fail, with the name of a rank on the other host.
void fail_with_a_name(Communicator& c) {
  std::vector<std::byte> window(kWindow);
  try {
    for (int round = 0; round < 1000; ++round) pass_window(c, window);
    throw check::Failure("no rank has failed");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("rank " + std::to_string(1 - c.rank())) != std::string::npos);
    CHECK(text.find("connection") != std::string::npos || text.find("connect") != std::string::npos);
  }
}

/// One forked process a rank. Rank 1 strikes.
void with_processes(const char* timeout, const std::function<std::string()>& strike,
                    const std::function<void(Communicator&, TestRegion&)>& body) {
  setenv("VCCL_LINK_TIMEOUT", timeout, 1);
  FileStore store;
  run_processes(2, [&](int rank) {
    TestRegion region(std::size_t{64} << 20);
    auto c = rank_on_host(store, rank, "ab", region);
    pass_everything(*c, region, 1);
    if (rank == 1) check_struck(strike());
    body(*c, region);
  });
}

// Those with processes come first: a process that has had threads should not fork under the thread sanitizer.
TEST(what_one_rank_sends_vanishes) {
  with_processes(kShort, &link_faults::drop, [](Communicator& c, TestRegion&) { fail_with_a_name(c); });
}
TEST(one_rank_cannot_connect_for_too_long) {
  with_processes(
      kShort, [] { return link_faults::cut(Milliseconds(100'000)); },
      [](Communicator& c, TestRegion&) { fail_with_a_name(c); });
}
// The ranks end while their last words are on their way.
TEST(what_one_rank_sends_comes_late) {
  with_processes(
      "60", [] { return link_faults::delay(Milliseconds(60)); },
      [](Communicator& c, TestRegion& region) { pass_everything(c, region, 2); });
}
TEST(what_one_rank_sends_is_lost_at_times) {
  with_processes(
      "60", [] { return link_faults::lose(0.1, 7); },
      [](Communicator& c, TestRegion& region) { pass_everything(c, region, 2); });
}

TEST(without_a_link_there_is_nothing_to_strike) {
  for (const std::string& why_not :
       {link_faults::reset(), link_faults::cut(Milliseconds(1)), link_faults::drop(),
        link_faults::delay(Milliseconds(1)), link_faults::lose(0.5, 1)})
    CHECK(why_not.find("no link to another host") != std::string::npos);
  CHECK(!link_faults::is_cut());
}

TEST(connections_are_reset_and_made_again) {
  for (const char* hosts : {"ab", "aab", "abc"})
    with_threads(hosts, "60", &link_faults::reset, [](Communicator& c, TestRegion& region) {
      for (std::uint64_t round = 2; round < 5; ++round) {
        pass_everything(c, region, round);
        if (c.rank() == 0) check_struck(link_faults::reset());
      }
      CHECK(!c.failed());
    });
}

TEST(links_are_cut_for_a_while) {
  with_threads(
      "ab", "60", [] { return link_faults::cut(Milliseconds(700)); },
      [](Communicator& c, TestRegion& region) {
        pass_everything(c, region, 2);
        CHECK(!link_faults::is_cut());  // before, no block could pass
      });
}

TEST(a_delay_holds_for_everything_that_is_sent) {
  static constexpr Milliseconds kDelay{40};
  with_threads(
      "ab", "60", [] { return link_faults::delay(kDelay); },
      [](Communicator& c, TestRegion& region) {
        const auto begin = Clock::now();
        std::vector<std::byte> window(700);
        for (int round = 0; round < 3; ++round) pass_window(c, window);
        CHECK(Clock::now() - begin >= 3 * kDelay);  // none is sent before the last one has come
        pass_everything(c, region, 2);
      });
}

TEST(losses_of_many_pieces) {
  with_threads(
      "ab", "60", [] { return link_faults::lose(0.1, 3); },
      [](Communicator& c, TestRegion& region) { pass_everything(c, region, 2); });
}

TEST(faults_that_are_over_leave_nothing_behind) {
  with_threads(
      "ab", "60", [] { return link_faults::delay(link_faults::kLongestDelay) + link_faults::lose(1, 3); },
      [](Communicator& c, TestRegion& region) {
        std::thread later;
        if (c.rank() == 0) later = std::thread(&link_faults::heal);
        pass_everything(c, region, 2);
        if (later.joinable()) later.join();
      });
}

// A program may use the same libzmq, and other connections.
TEST(connections_of_the_program_are_left_alone) {
  find_zmq_for_tests();
  const ZmqApi& api = zmq_api();
  void* const context = api.ctx_new();
  void *const here = api.socket(context, zmq_constant::kPair), *const there =
                                                                   api.socket(context, zmq_constant::kPair);
  CHECK_EQ(api.bind(here, "tcp://127.0.0.1:*"), 0);
  char endpoint[256];
  std::size_t size = sizeof endpoint;
  CHECK_EQ(api.getsockopt(here, zmq_constant::kLastEndpoint, endpoint, &size), 0);
  CHECK_EQ(api.connect(there, endpoint), 0);
  const auto pass = [&](char letter) {
    ZmqMessage sent(std::string(1, letter)), received;
    CHECK_EQ(api.msg_send(sent.raw(), there, 0), 1);
    CHECK_EQ(api.msg_recv(received.raw(), here, 0), 1);  // the link timeout is that of links alone
    CHECK(static_cast<char>(*received.data()) == letter);
  };
  pass('a');
  with_threads(
      "ab", kShort, [] { return link_faults::drop() + link_faults::cut(Milliseconds(100'000)); },
      [&](Communicator& c, TestRegion&) {
        if (c.rank() == 0) pass('b');
        fail_with_a_name(c);
        if (c.rank() == 0) pass('c');
      });
  const int none = 0;
  for (void* socket : {here, there}) {
    api.setsockopt(socket, zmq_constant::kLinger, &none, sizeof none);
    api.close(socket);
  }
  api.ctx_term(context);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
