// VCCL_PORT_RANGE: every port at which a rank listens for other hosts is of the range, over IPv4 and IPv6.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <barrier>
#include <set>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/connections/block_stream.hpp"
#include "transport/connections/connection_guard.hpp"

namespace vccl {
namespace {

const std::string kHosts[] = {"127.0.0.1", "[::1]"};

/// Returns the port of a listening socket of this process.
int port_of(int socket) {
  sockaddr_in6 address{};  // the longer of the two, which have the port at the same place
  socklen_t size = sizeof address;
  CHECK(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin6_port);
}

/// Returns the ports at which this process listens.
std::set<int> listening_ports() {
  std::set<int> ports;
  for (int number = 0; number < 1024; ++number) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) continue;
    int domain = 0;
    size = sizeof domain;
    CHECK(getsockopt(number, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0);
    if (domain != AF_UNIX) ports.insert(port_of(number));
  }
  return ports;
}

/// Returns the first of `count` ports in a row that are free now.
std::uint16_t free_ports(int count) {
  while (true) {
    const FileDescriptor socket = listen_at("127.0.0.1", {});
    const int first = port_of(socket.get()) + 1;
    try {
      std::vector<FileDescriptor> held;
      for (int port = first; port < first + count; ++port) {
        const auto number = static_cast<std::uint16_t>(port);
        for (const std::string& host : kHosts) held.push_back(listen_at(host, {number, number}));
      }
      return static_cast<std::uint16_t>(first);
    } catch (const Error&) {
      // One of them is taken.
    }
  }
}

PortRange range_of(int count) {
  const std::uint16_t first = free_ports(count);
  return {first, static_cast<std::uint16_t>(first + count - 1)};
}

TEST(ports_are_of_the_range_until_it_is_exhausted) {
  for (const std::string& host : kHosts) {
    const PortRange ports = range_of(3);
    std::vector<FileDescriptor> held;
    for (int port = ports.first; port <= ports.last; ++port) {
      held.push_back(listen_at(host, ports));
      CHECK_EQ(port_of(held.back().get()), port);
    }
    const Error error = error_of([&] { listen_at(host, ports); });
    CHECK(error.code() == ErrorCode::system);
    check_contains(error.what(), "no port of VCCL_PORT_RANGE=" + std::to_string(ports.first) + "-" +
                                     std::to_string(ports.last) + " is free at " + host);
    held.erase(held.begin() + 1);
    CHECK_EQ(port_of(listen_at(host, ports).get()), ports.first + 1);
  }
}

TEST(an_address_of_no_interface_is_another_error) {
  const Error error = error_of([] { listen_at("203.0.113.9", {40'000, 65'535}); });
  check_contains(error.what(), "listening at 203.0.113.9 port 40000 failed: Cannot assign requested address");
}

// A connection that has ended keeps its port for a while, which does not matter to those that listen.
TEST(a_port_can_be_used_again_at_once) {
  find_zmq_for_tests();
  for (const std::string& host : kHosts) {
    const PortRange ports = range_of(1);
    for (int round = 0; round < 3; ++round) {
      ZmqSocket listener, peer;
      const std::string endpoint = listener.bind(host, ports, 1, Log());
      CHECK_EQ(endpoint, "tcp://" + host + ":" + std::to_string(ports.first));
      peer.connect(endpoint, listener.public_key());
      CHECK(peer.send("hello"));
      while (!listener.receive()) usleep(100);
      listener.close(Milliseconds(0));  // this end closes first, and keeps the port in TIME_WAIT
      while (!peer.disconnected()) usleep(100);
      // libzmq's thread closes the descriptor a moment later.
      while (listening_ports().contains(ports.first)) usleep(100);
    }
  }
}

TEST(blocks_come_in_over_ipv6) {
  find_zmq_for_tests();
  const std::string contribution(Session::kContribution, 'c');
  const auto shared = [&] {
    return FrameProtection::agree(LinkSecurity::encrypt, contribution, contribution, "test");
  };
  BlockReceiver receiver({.address = "[::1]"}, Log());
  receiver.accept(shared());
  BlockSender sender(receiver.endpoint(), shared());
  std::vector<std::byte> block(70'000, std::byte{7}), slot(block.size());
  CHECK(sender.send(sender.prepare(1, block, slot.data())));
  std::optional<RemoteBlock> received;
  while (!(received = receiver.receive())) usleep(100);
  CHECK(std::ranges::equal(received->bytes.bytes(), block));
}

// Two hosts of two ranks, whose memory is shared: links, links across the hosts and messages.
TEST(a_group_listens_in_the_range_only) {
  find_zmq_for_tests();
  const PortRange ports = range_of(60);
  setenv("VCCL_PORT_RANGE", (std::to_string(ports.first) + "-" + std::to_string(ports.last)).c_str(), 1);
  MemoryStore store;
  std::barrier all_have_connected(4), all_have_looked(4);
  run_threads(4, [&](int rank) {
    TestRegion region;
    CommunicatorConfig config = test_config(rank, 4);
    config.host_id = rank < 2 ? "a" : "b";
    config.regions = {region.region()};
    const auto c = Communicator::create(store, config);
    CHECK(c->host_ring());
    check_rounds(*c, region);
    std::byte byte{};
    const Outcome sent = send(*c, (rank + 2) % 4, 1, {&byte, 1});
    receive(*c, (rank + 2) % 4, 1, {&byte, 1}).get();
    all_have_connected.arrive_and_wait();
    const std::set<int> found = listening_ports();
    all_have_looked.arrive_and_wait();
    // Two links of the ring and four across the hosts have two ports each, and each rank one for messages.
    CHECK_EQ(found.size(), 16u);
    for (const int port : found) CHECK(port >= ports.first && port <= ports.last);
  });
  unsetenv("VCCL_PORT_RANGE");
}

TEST(a_range_that_is_too_narrow_fails_the_group) {
  find_zmq_for_tests();
  const PortRange ports = range_of(2);
  setenv("VCCL_PORT_RANGE", (std::to_string(ports.first) + "-" + std::to_string(ports.last)).c_str(), 1);
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = std::to_string(rank);
    const Error error = error_of([&] { Communicator::create(store, config); });
    check_contains(error.what(), "could not join group test: no port of VCCL_PORT_RANGE=");
    check_contains(error.what(), "widen the range");
  });
  unsetenv("VCCL_PORT_RANGE");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
