// Links between hosts whose connections are reset at random: they are made again, and nothing is lost or
// comes twice.
#include <barrier>
#include <optional>

#include "tests/native/transport/cuts.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr const char* kSecurities[] = {"encrypt", "authenticate", "none"};

CommunicatorConfig on_host(int rank, const std::string& hosts) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.host_id = hosts.substr(static_cast<std::size_t>(rank), 1);
  return config;
}

/// Makes ranks, each on a thread. When all are made, calls begin(), and then body(communicator) on each
/// thread. When all have ended, calls end(), and then they leave. `hosts[rank]` is the host of a rank.
void with_ranks(const std::string& hosts, const std::function<void()>& begin,
                const std::function<void(Communicator&)>& body, const std::function<void()>& end) {
  MemoryStore store;
  const auto size = static_cast<std::ptrdiff_t>(hosts.size());
  std::barrier made(size, [&]() noexcept { begin(); });
  std::barrier done(size, [&]() noexcept { end(); });
  run_threads(static_cast<int>(size), [&](int rank) {
    auto c = Communicator::create(store, on_host(rank, hosts));
    made.arrive_and_wait();
    std::exception_ptr wrong;
    try {
      body(*c);
    } catch (...) {
      wrong = std::current_exception();
    }
    done.arrive_and_wait();
    if (wrong) std::rethrow_exception(wrong);
  });
}

/// Calls body(communicator) for each rank while connections are reset.
void with_resets(const std::string& hosts, const char* security, Milliseconds longest,
                 const std::function<void(Communicator&)>& body) {
  setenv("VCCL_LINK_SECURITY", security, 1);
  setenv("VCCL_LINK_TIMEOUT", "60", 1);  // the machine may be slow
  std::optional<Resets> resets;
  static unsigned seed = 0;
  with_ranks(hosts, [&] { resets.emplace(++seed, longest); }, body, [&] { resets->stop(); });
  CHECK(resets->count() > 0);
}

/// Long and short blocks.
void pass_blocks(Communicator& c) {
  std::vector<std::byte> window(kWindow);
  for (int round = 0; round < 12; ++round) {
    pass_window(c, window);
    pass_committed(c, 11);
    pass_window(c, std::span(window).first(700));
    pass_window(c, {});
  }
  CHECK_EQ(c.sequence(), 48u);
}

// Without libcrypto, libzmq encrypts the long blocks too. They go over the connection for control messages.
// This comes first: a process that has had threads should not fork under the thread sanitizer.
TEST(links_without_a_stream) {
  run_processes(1, [](int) {
    setenv("VCCL_CRYPTO_LIBRARY", "none", 1);
    with_resets("ab", "encrypt", Milliseconds(60), pass_blocks);
  });
}

TEST(two_hosts) {
  for (const char* security : kSecurities) with_resets("ab", security, Milliseconds(60), pass_blocks);
}
TEST(three_hosts) {
  for (const char* security : kSecurities) with_resets("abc", security, Milliseconds(60), pass_blocks);
}
TEST(hosts_with_several_ranks) {
  with_resets("aabb", "encrypt", Milliseconds(60), pass_blocks);
}
// Most of them meet a connection that is being made again.
TEST(many_resets) {
  with_resets("ab", "encrypt", Milliseconds(4), pass_blocks);
}

// Ranks that compute make their connections again, too.
TEST(resets_between_operations) {
  with_resets("ab", "encrypt", Milliseconds(300), [](Communicator& c) {
    std::vector<std::byte> window(kWindow);
    for (int round = 0; round < 6; ++round) {
      usleep(300'000);
      pass_window(c, window);
    }
  });
}

// Nothing comes any more, and neither end is told, as when a firewall drops what it does not know.
TEST(silent_connections) {
  setenv("VCCL_LINK_SECURITY", "encrypt", 1);
  setenv("VCCL_LINK_TIMEOUT", "20", 1);
  with_ranks(
      "ab",
      [] {
        for (const Connection& connection : tcp_connections()) silence_connection(connection);
      },
      pass_blocks, [] {});
}

}  // namespace
}  // namespace vccl

TEST_MAIN
