// Somebody on the path between hosts, or a stranger at a port, ends no process: links end in errors that name
// them, or are made again, and no number is wrong.
#include "tests/native/transport/links/on_path.hpp"

#include <future>
#include <optional>

#include "tests/native/transport/captured.hpp"
#include "tests/native/transport/meeting/path_store.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/connections/block_stream.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

using Then = OnPath::Then;

// A period of heartbeats is a twentieth of that: those that could end the process come soon.
const Milliseconds kSilence{1'000};

std::string text_of_frame(const ZmqMessage& frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

void wait_until(const std::function<bool()>& reached) {
  const Deadline deadline = Deadline::in(Milliseconds(60'000));
  while (!reached()) {
    CHECK(!deadline.passed());
    usleep(1000);
  }
}

/// Two ends of an encrypted connection, with somebody in between.
struct Ends {
  explicit Ends(OnPath::Judge judge) {
    path.emplace(listener.bind("127.0.0.1", {}, 1, Log()), std::move(judge));
    rank.connect(path->endpoint(), listener.public_key(), true);
    CHECK(rank.send("hello"));
    wait_until([&] {
      if (auto received = listener.receive()) route = received->route;
      return !route.empty();
    });
  }

  const bool found = (find_zmq_for_tests(), true);  // before the sockets
  ZmqSocket listener{ZmqSocket::Kind::host, kSilence}, rank{ZmqSocket::Kind::pair, kSilence};
  std::optional<OnPath> path;
  std::string route;
};

// libzmq reports that it cannot decipher what has come twice. It has to end the connection then, and not to
// stop reading: the next heartbeat after the connection's end would end the process.
TEST(bytes_that_come_twice_end_the_connection) {
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> repeats{false};
    Ends ends([&](const OnPath::Passing& passing, std::string& piece) {
      if (passing.to_target && repeats.exchange(false)) piece += piece;
      return Then::pass;
    });
    usleep(50'000);  // libzmq looks for commands once in a while only, and spoils errno when it does
    repeats = true;
    CHECK(ends.rank.send("something"));
    wait_until([&] { return ends.listener.hung_up(); });
    ends.path->reset_all();
    usleep(150'000);  // three heartbeats
  }
}

// The connection that closes cannot send any more, messages come in, and then the connection breaks.
TEST(a_connection_breaks_while_it_closes) {
  std::atomic<bool> holds{false};
  std::vector<std::byte> block(256 * 1024);
  Ends ends([&](const OnPath::Passing& passing, std::string&) {
    return passing.to_target && holds ? Then::hold : Then::pass;
  });
  holds = true;
  for (int i = 0; i < 64; ++i) CHECK(ends.rank.send("block", block.data(), block.size()));
  std::atomic<bool> closed{false};
  std::thread peer([&] {
    while (!closed) {
      ends.listener.post(ends.route, "more");
      usleep(500);
    }
  });
  std::thread breaks([&] {
    usleep(100'000);
    ends.path->reset_all();
  });
  const auto borrowed = ends.rank.borrowed();
  ends.rank.close(Milliseconds(300));
  usleep(200'000);
  closed = true;
  peer.join();
  breaks.join();
  wait_until([&] { return borrowed->count() == 0; });
}

// What is sent last goes out before a connection ends.
TEST(last_messages_arrive) {
  for (int i = 0; i < 20; ++i) {
    Ends ends([](const OnPath::Passing&, std::string&) { return Then::pass; });
    CHECK(ends.rank.send("before"));
    CHECK(ends.rank.post_last({}, "last") == ZmqSocket::Sent::yes);
    ends.rank.close(Milliseconds(30'000));
    for (const char* expected : {"before", "last"}) {
      std::optional<ZmqSocket::Received> received;
      wait_until([&] { return (received = ends.listener.receive()).has_value(); });
      CHECK_EQ(text_of_frame(received->control), std::string(expected));
    }
  }
}

FrameProtection shared_protection() {
  const std::string contribution(Session::kContribution, 'c');
  return FrameProtection::agree(LinkSecurity::encrypt, contribution, contribution, "test");
}

/// Connects to a stream as somebody who passes libzmq's handshake.
FileDescriptor greet_stream(const std::string& endpoint) {
  FileDescriptor socket = dial_loopback(endpoint);
  CHECK(socket);
  std::string greeting(64, '\0');
  greeting.replace(0, 1, "\xff").replace(9, 2, "\x7f\x03").replace(12, 4, "NULL");
  const std::string ready("\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH", 28);
  const std::string all = greeting + ready;
  CHECK_EQ(::send(socket.get(), all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
  return socket;
}

// More messages than libzmq would keep, a ping behind them, and the end of the connection: all that before
// the rank looks. The stream then still lets the rank in.
TEST(a_stranger_at_a_stream_sends_messages_and_a_ping) {
  find_zmq_for_tests();
  BlockReceiver receiver({.address = "127.0.0.1"}, Log());
  receiver.accept(shared_protection());
  for (int count = 1; count < 12; ++count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += std::string("\0\3bad", 5);
    all += std::string("\4\7\4PING\0\0", 9) + std::string("\0\3bad", 5);
    FileDescriptor stranger = greet_stream(receiver.endpoint());
    CHECK_EQ(::send(stranger.get(), all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
    usleep(20'000);
    end_by_reset(stranger);
    stranger.reset();
    usleep(20'000);
    while (receiver.receive()) {
    }
    usleep(20'000);
    CHECK(!receiver.receive());
  }
  BlockSender sender(receiver.endpoint(), shared_protection());
  wait_until([&] {
    CHECK(!receiver.receive());
    return receiver.greeted();
  });
}

// libzmq reads all that comes, though nobody looks.
TEST(a_stranger_who_floods_a_stream_is_turned_away) {
  find_zmq_for_tests();
  BlockReceiver receiver({.address = "127.0.0.1"}, Log());
  receiver.accept(shared_protection());
  FileDescriptor stranger = greet_stream(receiver.endpoint());
  std::string message("\2\0\0\0\0\0\3\0\0", 9);  // 192 KiB
  message.resize(9 + 3 * 65'536);
  wait_until([&] { return ::send(stranger.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0; });
  // Strangers who were there before go when the rank has come.
  FileDescriptor silent = greet_stream(receiver.endpoint());
  BlockSender sender(receiver.endpoint(), shared_protection());
  wait_until([&] {
    CHECK(!receiver.receive());
    return receiver.greeted();
  });
  char byte;
  wait_until([&] {
    const ssize_t got = recv(silent.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  });
  std::vector<std::byte> block(5'000, std::byte{1}), slot(block.size());
  CHECK(sender.send(sender.prepare(1, block, slot.data())));
  wait_until([&] { return receiver.receive().has_value(); });
}

// Changed, repeated and missing bytes in a group that was made end in an error that names two ranks, or in
// right numbers.
TEST(tampering_ends_in_errors) {
  find_zmq_for_tests();
  setenv("VCCL_LINK_TIMEOUT", "3", 1);
  const std::function<void(std::string&)> kinds[] = {
      [](std::string& piece) { piece += piece; },
      [](std::string& piece) { piece.erase(piece.size() / 2, 7); },
      [](std::string& piece) { piece[piece.size() / 2] ^= 4; },
      [](std::string& piece) { piece += std::string(5'000, 'x'); },
  };
  for (const auto& tamper : kinds) {
    for (const int which : {1, 4, 11}) {
      std::atomic<int> made{0};
      int pieces = 0;
      PathStore store([&](const std::string&, const OnPath::Passing&, std::string& piece) {
        if (made == 2 && (++pieces == which || pieces == which + 2)) tamper(piece);
        return Then::pass;
      });
      run_threads(2, [&](int rank) {
        try {
          const auto c = make_over(store, "ab", rank);
          ++made;
          std::vector<std::byte> window(kWindow);
          for (int round = 0; round < 4; ++round) {
            // Bytes that are missing at the end of what was sent show at the timeout.
            pass_window(*c, window, Milliseconds(10'000));
            pass_window(*c, std::span(window).first(700), Milliseconds(10'000));
          }
        } catch (const Error& error) {
          check_contains(error.what(), "rank 0");
          check_contains(error.what(), "rank 1");
        }
      });
    }
  }
  unsetenv("VCCL_LINK_TIMEOUT");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
