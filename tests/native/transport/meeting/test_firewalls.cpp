// Ports that a firewall closes: the group is not made, and the error names both ranks, the port and what to
// do. A store that rewrites records leads the ranks to ports that refuse connections, or that do not answer.
#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

/// A port of this machine to which nobody can connect.
class ClosedPort {
 public:
  enum class Firewall { refuses, drops };

  // A port that is bound and not listened at refuses connections. One with this filter drops all packets.
  explicit ClosedPort(Firewall firewall) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* place = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    CHECK(bind(socket_.get(), place, size) == 0 && getsockname(socket_.get(), place, &size) == 0);
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    if (firewall == Firewall::refuses) return;
    sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{1, nothing};
    CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    CHECK(listen(socket_.get(), 1) == 0);
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  FileDescriptor socket_;
  std::string endpoint_;
};

/// Replaces a field of the record that is set under `key`.
class RewritingStore final : public MemoryStore {
 public:
  RewritingStore(std::string key, std::string field, std::string value)
      : key_(std::move(key)), field_(std::move(field)), value_(std::move(value)) {}

  void set(const std::string& key, const std::string& value) override {
    if (key != key_) return MemoryStore::set(key, value);
    Map fields = msgpack::decode(value).as_map();
    CHECK(fields.contains(field_));
    fields[field_] = value_;
    rewritten = true;
    MemoryStore::set(key, msgpack::encode(fields));
  }

  std::atomic<bool> rewritten{false};

 private:
  const std::string key_, field_, value_;
};

/// Makes a group of ranks on the hosts that `hosts` names, one letter a rank.
std::unique_ptr<Communicator> make(Store& store, const std::string& hosts, int rank,
                                   const TestRegion& region) {
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.host_id = hosts.substr(static_cast<std::size_t>(rank), 1);
  config.regions = {region.region()};
  return Communicator::create(store, config);
}

/// What all ranks raise if the field of this record leads to the port.
Error error_with(const std::string& hosts, const std::string& key, const std::string& field,
                 const ClosedPort& port) {
  find_zmq_for_tests();
  setenv("VCCL_LINK_TIMEOUT", "2", 1);
  RewritingStore store(key, field, port.endpoint());
  const Error error = same_error_of(static_cast<int>(hosts.size()), [&](int rank) {
    TestRegion region;
    return error_of([&] { make(store, hosts, rank, region); });
  });
  unsetenv("VCCL_LINK_TIMEOUT");
  CHECK(store.rewritten);
  check_contains(error.what(), "a firewall may be in the way (VCCL_PORT_RANGE");
  check_contains(error.what(), "VCCL_SOCKET_IFNAME");
  return error;
}

TEST(a_closed_port_of_a_link_is_told) {
  for (const auto& [firewall, how] : {std::pair(ClosedPort::Firewall::refuses, "it was refused"),
                                      std::pair(ClosedPort::Firewall::drops, "nobody answered")}) {
    const ClosedPort port(firewall);
    const Error error = error_with("ab", "link/1", "endpoint", port);
    check_contains(error.what(),
                   "rank 0 could not connect to rank 1 (" + port.endpoint() + ", host b) within 6 s (" + how);
  }
}

TEST(a_closed_port_of_a_stream_is_told) {
  for (const auto firewall : {ClosedPort::Firewall::refuses, ClosedPort::Firewall::drops}) {
    const Error error = error_with("ab", "link/1", "stream", ClosedPort(firewall));
    check_contains(error.what(),
                   "rank 0 (tcp://127.0.0.1, host a) has connected to rank 1 (tcp://127.0.0.1:");
    check_contains(error.what(), ", host b), but not to tcp://127.0.0.1:");
    check_contains(error.what(), "within 6 s, where blocks from there have to come in");
  }
}

TEST(a_closed_port_of_the_ring_across_hosts_is_told) {
  const ClosedPort port(ClosedPort::Firewall::drops);
  check_contains(error_with("aabb", "across/2", "stream", port).what(),
                 "rank 0 (tcp://127.0.0.1, host a) has connected to rank 2 (tcp://127.0.0.1:");
  check_contains(error_with("aabb", "across/3", "endpoint", port).what(),
                 "rank 1 could not connect to rank 3 (" + port.endpoint() + ", host b)");
}

TEST(a_closed_port_of_messages_is_told) {
  find_zmq_for_tests();
  setenv("VCCL_LINK_TIMEOUT", "2", 1);
  const ClosedPort port(ClosedPort::Firewall::drops);
  RewritingStore store("messages/1", "endpoint", port.endpoint());
  std::atomic<bool> failed{false};
  run_threads(2, [&](int rank) {
    TestRegion region;
    const auto c = make(store, "ab", rank, region);
    std::byte byte{};
    if (rank == 0) {
      const Outcome sent = send(*c, 1, 7, {&byte, 1});
      const Error error = error_of([&] { receive(*c, 1, 7, {&byte, 1}).get(); });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "rank 0 could not connect to rank 1 (" + port.endpoint() +
                                       ", host b) within 6 s (nobody answered; a firewall may be in the way");
      failed = true;
    }
    while (!failed) usleep(1000);
  });
  unsetenv("VCCL_LINK_TIMEOUT");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
