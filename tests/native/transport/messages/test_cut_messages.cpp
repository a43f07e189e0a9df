// Messages between hosts whose connections are reset at random: they are made again, and nothing is lost or
// comes twice.
#include <barrier>
#include <optional>

#include "tests/native/transport/cuts.hpp"
#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr const char* kSecurities[] = {"encrypt", "authenticate", "none"};

/// Exchanges messages of all lengths between all ranks while connections are reset: those of the ring of
/// hosts, and those of messages, which are `connected` before or not. `hosts[rank]` is the host of a rank.
void with_resets(const std::string& hosts, const char* security, Milliseconds longest, int rounds,
                 bool connected = true) {
  setenv("VCCL_LINK_SECURITY", security, 1);
  setenv("VCCL_LINK_TIMEOUT", "60", 1);  // the machine may be slow
  find_zmq_for_tests();
  const int size = static_cast<int>(hosts.size());
  MemoryStore store;
  std::optional<Resets> resets;
  static unsigned seed = 100;
  std::barrier made(size, [&]() noexcept { resets.emplace(++seed, longest); });
  std::barrier done(size, [&]() noexcept { resets->stop(); });
  run_threads(size, [&](int rank) {
    TestRegion region(std::size_t{64} << 20);
    CommunicatorConfig config = test_config(rank, size);
    config.regions = {region.region()};
    config.host_id = hosts.substr(static_cast<std::size_t>(rank), 1);
    auto c = Communicator::create(store, config);
    std::exception_ptr wrong;
    try {
      if (connected) run_traffic(*c, region, plan_traffic(size, 20, 1, false), 1);
    } catch (...) {
      wrong = std::current_exception();
    }
    made.arrive_and_wait();
    try {
      for (int round = 0; round < rounds && !wrong; ++round) {
        const auto number = static_cast<std::uint64_t>(round) + 7;
        run_traffic(*c, region, plan_traffic(size, 120, number, true), number);
      }
    } catch (...) {
      wrong = std::current_exception();
    }
    done.arrive_and_wait();
    if (wrong) std::rethrow_exception(wrong);
  });
  CHECK(resets->count() > 0);
}

// Without libcrypto the blocks of long messages go over the connections for control messages. This comes
// first: a process that has had threads should not fork under the thread sanitizer.
TEST(messages_without_streams) {
  run_processes(1, [](int) {
    setenv("VCCL_CRYPTO_LIBRARY", "none", 1);
    with_resets("ab", "encrypt", Milliseconds(60), 5);
  });
}

TEST(two_hosts) {
  for (const char* security : kSecurities) with_resets("ab", security, Milliseconds(60), 6);
}
TEST(three_hosts) {
  for (const char* security : kSecurities) with_resets("abc", security, Milliseconds(60), 5);
}
TEST(resets_from_the_first_message_on) {
  for (const char* security : kSecurities) with_resets("ab", security, Milliseconds(10), 3, false);
}
// libzmq then sees an attempt that has failed, as if the peer had refused it.
TEST(a_cut_before_libzmq_has_seen_the_connection) {
  setenv("VCCL_LINK_TIMEOUT", "60", 1);
  find_zmq_for_tests();
  MemoryStore store;
  std::barrier made(3), silenced(3);
  run_threads(3, [&](int rank) {
    if (rank == 2) {
      made.arrive_and_wait();
      SilentListeners silent;
      silenced.arrive_and_wait();
      const Deadline deadline = Deadline::in(kFar);
      while (reset_attempts() == 0) CHECK(!deadline.passed());
      return;
    }
    TestRegion region(std::size_t{64} << 20);
    CommunicatorConfig config = test_config(rank, 2);
    config.regions = {region.region()};
    config.host_id = rank == 0 ? "a" : "b";
    auto c = Communicator::create(store, config);
    made.arrive_and_wait();
    silenced.arrive_and_wait();
    run_traffic(*c, region, plan_traffic(2, 20, 1, false), 1);
  });
}

TEST(many_resets) {
  with_resets("ab", "encrypt", Milliseconds(5), 5);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
