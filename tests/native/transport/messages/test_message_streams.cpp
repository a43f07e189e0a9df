// The streams of long messages between hosts: how two ranks make one, what goes over it, and what happens
// where it cannot be made.
#include "transport/messages/message_streams.hpp"

#include "tests/native/transport/captured.hpp"
#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/messages/message_peer.hpp"

namespace vccl {
namespace {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

constexpr std::size_t kBlock = Communicator::kBlockBytes;

// These come first, while this process has loaded no libcrypto that the ranks would inherit.

/// Two ranks on two hosts, of which rank 1 may lack libcrypto, send each other long messages.
void exchange_long_messages(const std::string& security, bool lacks_crypto,
                            const std::function<void(int, const std::string&)>& check) {
  find_zmq_for_tests();
  FileStore store;
  run_processes(2, [&](int rank) {
    setenv("VCCL_LINK_SECURITY", security.c_str(), 1);
    setenv("VCCL_DEBUG", "INFO", 1);
    if (rank == 1 && lacks_crypto) setenv("VCCL_CRYPTO_LIBRARY", "none", 1);
    std::string text;
    {
      Captured captured;
      CommunicatorConfig config = test_config(rank, 2);
      config.host_id = std::to_string(rank);
      auto c = Communicator::create(store, config);
      for (std::size_t bytes : {MessagePeer::kShortBytes + 1, kBlock, 5 * kBlock + 77, 30 * kBlock}) {
        std::vector<std::byte> out(bytes), in(bytes);
        fill(out, bytes + static_cast<std::size_t>(rank));
        Outcome sent = send(*c, 1 - rank, 4, out);
        receive(*c, 1 - rank, 4, in).get();
        sent.get();
        check_content(in, bytes + static_cast<std::size_t>(1 - rank));
      }
      CHECK(!c->failed());
      text = captured.text();
    }
    check(rank, text);
  });
}

TEST(long_messages_take_the_stream) {
  for (const std::string security : {"encrypt", "authenticate", "none"}) {
    exchange_long_messages(security, false, [&](int rank, const std::string& text) {
      check_contains(text, "long messages to rank " + std::to_string(1 - rank) + " (tcp://127.0.0.1:");
      check_contains(text, "): " + security);
    });
  }
}

TEST(long_messages_without_libcrypto) {
  exchange_long_messages("encrypt", true, [](int, const std::string& text) {
    CHECK(text.find("long messages to rank") == std::string::npos);
  });
}

/// What rank 0 sends to rank 1.
struct Direction {
  explicit Direction(LinkSecurity security, PortRange ports = {},
                     Milliseconds silence = Milliseconds(5'000)) {
    find_zmq_for_tests();
    for (int rank : {0, 1}) {
      groups[rank].name = "test";
      groups[rank].rank = rank;
      groups[rank].size = 2;
      groups[rank].host_names[1 - rank] = rank == 0 ? "b" : "a";
    }
    const LinkSettings settings{
        .address = "127.0.0.1", .ports = ports, .security = security, .silence = silence};
    sender = std::make_unique<MessageStreams>(groups[0], 1, settings);
    receiver = std::make_unique<MessageStreams>(groups[1], 0, settings);
  }
  Map offer() {
    Map fields;
    sender->add_to_offer(fields);
    return fields;
  }
  Map want() {
    Map fields;
    receiver->add_to_want(fields);
    return fields;
  }
  void agree() {
    receiver->read_offer(offer());
    sender->read_want(want());
  }
  RemoteBlock next() {
    const Deadline deadline = Deadline::in(kFar);
    while (!deadline.passed()) {
      if (auto block = receiver->receive()) return std::move(*block);
      usleep(200);
    }
    throw check::Failure("nothing came");
  }

  Group groups[2];
  std::unique_ptr<MessageStreams> sender, receiver;
};

TEST(blocks_arrive_in_order_under_every_security) {
  for (const auto security : {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none}) {
    Direction direction(security);
    direction.agree();
    CHECK(direction.sender->sends());
    CHECK(!direction.receiver->sends());
    // More blocks than the window has, so that slots are used again, of different lengths.
    std::vector<std::byte> memory(kBlock);
    const std::uint64_t blocks = 3 * MessageStreams::kWindow + 1;
    for (std::uint64_t id = 1; id <= blocks; ++id) {
      const auto block = std::span(memory).first(id % 2 ? kBlock : 9'000 + id);
      fill(block, id);
      direction.sender->send(id, block, id);
      const RemoteBlock received = direction.next();
      CHECK_EQ(received.sequence, id);
      CHECK_EQ(received.bytes.size(), block.size());
      check_content({received.bytes.data(), received.bytes.size()}, id);
      // Sealing must not change what the program sends.
      check_content(block, id);
    }
    CHECK(!direction.sender->problem().has_value());
  }
}

TEST(a_stream_is_made_once) {
  Direction direction(LinkSecurity::encrypt);
  const Map first = direction.offer();
  CHECK(first.contains("secret"));
  CHECK(direction.offer().empty());
  direction.receiver->read_offer(first);
  const Map answer = direction.want();
  CHECK(answer.contains("secret") && answer.contains("stream"));
  CHECK(direction.want().empty());
  direction.sender->read_want(answer);
  direction.sender->read_want(Map{});  // of the next message
  check_contains(error_of([&] { direction.sender->read_want(answer); }).what(), "nobody asked for");
  check_contains(error_of([&] { direction.receiver->read_offer(first); }).what(), "a second stream");
}

TEST(what_no_peer_says_of_a_stream) {
  Direction direction(LinkSecurity::encrypt);
  check_contains(error_of([&] { direction.receiver->read_offer(Map{{"secret", Binary{"short"}}}); }).what(),
                 "a secret of 5 bytes");
  check_contains(error_of([&] {
                   direction.sender->read_want(Map{{"stream", "tcp://127.0.0.1:9"}, {"secret", Binary{"x"}}});
                 }).what(),
                 "nobody asked for");
  direction.offer();
  CHECK(error_of([&] {
          direction.sender->read_want(Map{{"stream", "tcp://127.0.0.1:9"}, {"secret", Binary{"x"}}});
        }).code() == ErrorCode::protocol);
}

// The other blocks of that direction then go over the encrypted connection.
TEST(no_stream_where_one_rank_cannot_make_it) {
  Direction silent(LinkSecurity::encrypt);
  silent.receiver->read_offer(Map{});
  silent.sender->read_want(silent.want());
  CHECK(!silent.sender->sends());

  ZmqSocket taken;
  const std::string endpoint = taken.bind("127.0.0.1", {}, 1, Log());
  const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  Direction blocked(LinkSecurity::encrypt, {port, port});
  blocked.receiver->read_offer(blocked.offer());
  const Map answer = blocked.want();
  CHECK(answer.empty());
  blocked.sender->read_want(answer);
  CHECK(!blocked.sender->sends());
}

TEST(a_stream_that_cannot_be_opened_is_told) {
  Direction direction(LinkSecurity::encrypt, {}, Milliseconds(50));
  direction.receiver->read_offer(direction.offer());
  Map answer = direction.want();
  direction.receiver.reset();  // nobody listens there any more
  direction.sender->read_want(answer);
  CHECK(direction.sender->restless());
  const Deadline deadline = Deadline::in(kFar);
  std::optional<Error> problem;
  while (!problem && !deadline.passed()) {
    problem = direction.sender->problem();
    usleep(1'000);
  }
  CHECK(problem && problem->code() == ErrorCode::bootstrap);
  check_contains(problem->what(), "the stream of messages from rank 0 to rank 1 (" +
                                      answer.at("stream").as_string() +
                                      ", host b) could not be opened within 150 ms");
  check_contains(problem->what(), "VCCL_PORT_RANGE");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
