// Few descriptors, and strangers who hold some: errors that say what to do, and never the end of the process.
#include "transport/system/descriptor_limit.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/native/transport/captured.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/connections/block_stream.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/support/rate_limit.hpp"

namespace vccl {
namespace {

const Milliseconds kLong{30'000};

void set_limit(std::size_t most) {
  rlimit limit{};
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = most;
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

std::size_t open_files() {
  std::size_t count = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.is_symlink();
  return count - 1;  // without the folder's own
}

/// A plain TCP connection to "tcp://127.0.0.1:PORT"; empty if none is made within `time`.
FileDescriptor connect_to(const std::string& endpoint, Milliseconds time = kLong) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw_system("socket");
  const timeval limit{time.count() / 1000, time.count() % 1000 * 1000};
  CHECK_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

void wait_until(const std::function<bool()>& reached) {
  const Deadline deadline = Deadline::in(kLong);
  while (!reached()) {
    CHECK(!deadline.passed());
    usleep(1000);
  }
}

TEST(what_is_needed_is_counted) {
  Processes processes(1, [](int) {
    close_range(3, ~0u, 0);  // what was inherited may lie anywhere
    const std::size_t open = open_files();
    set_limit(open + 20);
    require_descriptors(12, "tests");
    const Error error = error_of([] { require_descriptors(13, "tests"); });
    CHECK(error.code() == ErrorCode::system);
    CHECK_EQ(std::string(error.what()),
             "tests need 21 file descriptors, 8 of them as a reserve, but this process has " +
                 std::to_string(open) + " of the " + std::to_string(open + 20) +
                 " open that it may open. Raise the limit, at least to " + std::to_string(open + 21) +
                 ": ulimit -n");
    set_limit(open);  // not even /proc can be looked at
    CHECK(error_of([] { require_descriptors(1, "tests"); }).code() == ErrorCode::system);
  });
  processes.check_ends();
}

/// Joins a group of two hosts with `spare` descriptors beyond those that are open. A rank that cannot join
/// has an error that names the limit; whatever happens, the process does not end by a signal.
void join_with(std::size_t spare, std::set<bool>& outcomes) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    close_range(3, ~0u, 0);
    find_zmq_for_tests();
    zmq_api();
    set_limit(open_files() + spare);
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = "host" + std::to_string(rank);
    config.timeout = Milliseconds(3'000);
    try {
      const auto c = Communicator::create(store, config);
      std::byte byte{static_cast<std::byte>(rank)};
      Operation operation(*c, {}, {}, Deadline::in(kLong));
      c->right().reserve()[0] = byte;
      c->right().commit(1);
      CHECK_EQ(static_cast<int>(c->left().take_committed(1)[0]), 1 - rank);
      c->left().release();
      operation.finish();
      store.set("joined", "1");
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK(error.code() == ErrorCode::system || error.code() == ErrorCode::bootstrap ||
            error.code() == ErrorCode::timeout);
      if (error.code() == ErrorCode::timeout) return;  // the other one could not join
      if (text.find("Too many open files") == std::string::npos) check_contains(text, "ulimit -n");
    } catch (const std::filesystem::filesystem_error&) {
      // Not even the test's store can open a file.
    }
  });
  processes.check_ends();
  bool joined = true;
  try {
    store.get("joined", Deadline::in(Milliseconds(0)));
  } catch (const Error&) {
    joined = false;
  }
  outcomes.insert(joined);
}

TEST(few_descriptors_are_an_error_and_never_an_abort) {
  std::set<bool> outcomes;
  for (const std::size_t spare : {0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 40, 60, 100}) {
    join_with(spare, outcomes);
  }
  CHECK_EQ(outcomes.size(), 2u);  // with the most of them the group works
}

TEST(strangers_hold_so_many_connections_and_no_more) {
  find_zmq_for_tests();
  ZmqSocket listener(ZmqSocket::Kind::router);
  const std::string endpoint = listener.bind("127.0.0.1", {}, 1, Log());
  const std::size_t most = 1 + ZmqSocket::kStrangers;
  std::vector<FileDescriptor> strangers;
  const std::size_t before = open_files();
  for (std::size_t i = 0; i < most; ++i) {
    strangers.push_back(connect_to(endpoint));
    CHECK(strangers.back());
    wait_until([&] { return open_files() >= before + 2 * (i + 1); });
  }
  // The kernel answers nobody from here on. The porter may need a moment for that.
  wait_until([&] { return !connect_to(endpoint, Milliseconds(100)); });
  // Room is made when one hangs up.
  strangers.pop_back();
  CHECK(connect_to(endpoint));
  strangers.clear();
  // And a rank gets through.
  ZmqSocket rank(ZmqSocket::Kind::dealer);
  rank.connect(endpoint, listener.public_key());
  CHECK(rank.send("hello"));
  wait_until([&] { return listener.receive().has_value(); });
}

/// Connects as somebody who passes the handshake of a connection without encryption, and says nothing more.
FileDescriptor greet_as_stranger(const std::string& endpoint) {
  FileDescriptor socket = connect_to(endpoint);
  CHECK(socket);
  std::string greeting(64, '\0');
  greeting.replace(0, 1, "\xff").replace(9, 2, "\x7f\x03").replace(12, 4, "NULL");
  const std::string ready("\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH", 28);
  const std::string all = greeting + ready;
  CHECK_EQ(write(socket.get(), all.data(), all.size()), static_cast<ssize_t>(all.size()));
  return socket;
}

// The port of a stream has no handshake that a stranger could fail. Strangers who connect and say nothing do
// not keep the rank out.
TEST(a_rank_reaches_its_stream_though_strangers_hold_all_places) {
  find_zmq_for_tests();
  const std::string contribution(Session::kContribution, 'c');
  const auto shared = [&] {
    return FrameProtection::agree(LinkSecurity::encrypt, contribution, contribution, "test");
  };
  BlockReceiver receiver({.address = "127.0.0.1"}, Log());
  receiver.accept(shared());
  std::vector<FileDescriptor> strangers;
  const std::size_t before = open_files();
  for (std::size_t i = 0; i < ZmqSocket::kStrangers; ++i) {
    strangers.push_back(greet_as_stranger(receiver.endpoint()));
    wait_until([&] { return open_files() >= before + 2 * (i + 1); });
  }
  strangers.push_back(greet_as_stranger(receiver.endpoint()));
  // The first one has to go.
  char byte;
  wait_until([&] {
    ssize_t got;
    while ((got = recv(strangers.front().get(), &byte, 1, MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || (errno != EAGAIN && errno != EINTR);
  });
  BlockSender sender(receiver.endpoint(), shared());
  wait_until([&] {
    CHECK(!receiver.receive());
    return receiver.greeted();
  });
  // From then on nobody else is let in, and the rank stays.
  wait_until([&] { return !connect_to(receiver.endpoint(), Milliseconds(100)); });
  std::vector<std::byte> block(5'000, std::byte{1}), slot(block.size());
  CHECK(sender.send(sender.prepare(1, block, slot.data())));
  wait_until([&] { return receiver.receive().has_value(); });
}

TEST(a_listener_that_was_shut_keeps_its_connections) {
  find_zmq_for_tests();
  ZmqSocket left, right;
  right.connect(left.bind("127.0.0.1", {}, 1, Log()), left.public_key());
  CHECK(right.send("hello"));
  wait_until([&] { return left.receive().has_value(); });
  left.shut();
  CHECK(right.send("again"));
  wait_until([&] { return left.receive().has_value(); });
  CHECK(left.send("answer"));
  wait_until([&] { return right.receive().has_value(); });
  right.close(Milliseconds(0));
  wait_until([&] { return left.disconnected(); });
}

TEST(strangers_are_told_of_once) {
  find_zmq_for_tests();
  Captured captured;
  ZmqSocket listener(ZmqSocket::Kind::router);
  const std::string endpoint = listener.bind("127.0.0.1", {}, 1, Log(LogLevel::info, 3, "g"));
  std::vector<FileDescriptor> strangers;
  for (std::size_t i = 0; i < 1 + ZmqSocket::kStrangers; ++i) strangers.push_back(connect_to(endpoint));
  // From here on the guard knows them all, and where they come from.
  wait_until([&] { return !connect_to(endpoint, Milliseconds(100)); });
  strangers.clear();
  wait_until([&] { return captured.text().find("turned away") != std::string::npos; });
  CHECK(connect_to(endpoint));  // there is room again: the ends of most were seen
  const std::string text = captured.text();
  check_contains(text, "[vccl] rank 3 (g): 17 connections to " + endpoint + " are open");
  const std::string line =
      "[vccl] rank 3 (g): turned away somebody at 127.0.0.1 who connected to " + endpoint;
  check_contains(text, line);
  CHECK_EQ(text.find(line), text.rfind(line));
}

TEST(ranks_are_no_strangers) {
  find_zmq_for_tests();
  Captured captured;
  ZmqSocket listener(ZmqSocket::Kind::router);
  const std::string endpoint = listener.bind("127.0.0.1", {}, 1, Log(LogLevel::info, 3, "g"));
  ZmqSocket rank(ZmqSocket::Kind::dealer);
  rank.connect(endpoint, listener.public_key());
  CHECK(rank.send("hello"));
  wait_until([&] { return listener.receive().has_value(); });
  rank.close(Milliseconds(0));
  wait_until([&] { return listener.hung_up(); });
  CHECK_EQ(captured.text(), "");
}

TEST(a_source_and_minute) {
  RateLimit limit;
  const auto start = Clock::now();
  CHECK(limit.allows("a", start));
  CHECK(!limit.allows("a", start + Milliseconds(59'999)));
  CHECK(limit.allows("b", start + Milliseconds(59'999)));
  CHECK(limit.allows("a", start + Milliseconds(60'000)));
  CHECK(!limit.allows("b", start + Milliseconds(60'000)));
  for (std::size_t i = 2; i < RateLimit::kMostSources; ++i) CHECK(limit.allows(std::to_string(i), start));
}

TEST(a_library_without_encryption_is_warned_of) {
  // The library that is loaded has CURVE: this hides it.
  auto& api = const_cast<ZmqApi&>(zmq_api());
  const auto has = api.has;
  Captured captured;
  ZmqSocket(ZmqSocket::Kind::router).bind("127.0.0.1", {}, 1, Log(LogLevel::warn, 3, "g"));
  CHECK_EQ(captured.text(), "");
  api.has = [](const char*) { return 0; };
  ZmqSocket(ZmqSocket::Kind::router).bind("127.0.0.1", {}, 1, Log(LogLevel::warn, 3, "g"));
  api.has = has;
  CHECK(captured.text().find("rank 3 (g): the libzmq in use has no CURVE") != std::string::npos);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
