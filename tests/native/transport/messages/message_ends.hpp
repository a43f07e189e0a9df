// The two ends of a connection for messages between hosts, of which a test speaks for one.
#pragma once

#include <functional>
#include <memory>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/messages/message_peer.hpp"

namespace vccl {

using msgpack::Map;
using msgpack::Value;

inline constexpr std::size_t kShort = MessagePeer::kShortBytes;
inline constexpr std::size_t kBlock = MessagePeer::kBlockBytes;

struct Reports final : MessageSink {
  void offered(int source, const Envelope& envelope,
               std::optional<std::span<const std::byte>> payload) override {
    CHECK_EQ(source, 1);
    last = envelope;
    with_payload = payload.has_value();
    ++offers;
  }
  void sent(std::uint64_t id) override { done.push_back(id); }
  void taken(int, std::uint64_t id) override { got.push_back(id); }
  bool awaits(int) const override { return false; }
  void lost(int, ErrorCode, const std::string&) override { throw check::Failure("not a peer's to say"); }

  Envelope last;
  bool with_payload = false;
  int offers = 0;
  std::vector<std::uint64_t> done, got;
};

inline Envelope envelope(std::uint64_t id, std::size_t bytes) {
  return {.tag = 3, .signature = {.collective = 9, .count = bytes}, .bytes = bytes, .id = id};
}

inline Map offer(std::uint64_t id, std::uint64_t bytes) {
  Map fields = signature_fields({.collective = 9, .count = bytes});
  fields.merge(Map{{"t", "offer"}, {"id", id}, {"bytes", bytes}, {"tag", 3}});
  return fields;
}
inline Map about(const char* type, std::uint64_t id) {
  return {{"t", type}, {"id", id}};
}

/// Rank 0's view of rank 1, and rank 1's end of the connection, which the test speaks for.
struct Ends {
  Ends() {
    find_zmq_for_tests();
    group.name = "test";
    group.rank = 0;
    group.size = 2;
    ours = std::make_unique<ZmqSocket>();
    theirs = std::make_unique<ZmqSocket>();
    const std::string endpoint = ours->bind("127.0.0.1", {}, 1, Log());
    theirs->connect(endpoint, ours->public_key());
    peer = std::make_unique<MessagePeer>(group, 1, LinkSettings{.address = "127.0.0.1"});
    // A message there and back: from now on nothing waits for the connection.
    theirs->send(control_message("ping"));
    wait(*ours);
    ours->send(control_message("pong"));
    wait(*theirs);
  }
  static ZmqSocket::Received wait(ZmqSocket& socket) {
    const Deadline deadline = Deadline::in(kFar);
    while (!deadline.passed()) {
      if (auto received = socket.receive()) return std::move(*received);
      usleep(200);
    }
    throw check::Failure("nothing came");
  }
  void flush() {
    while (peer->flush({ours.get(), {}})) {
    }
  }
  /// Whether the bytes were copied at once.
  bool offer(const Envelope& envelope, std::span<const std::byte> bytes) {
    peer->offer(envelope, bytes);
    return !peer->take_copied().empty();
  }
  ZmqSocket::Received next() { return wait(*theirs); }
  /// The next control message, of this type.
  Value next(const char* type, std::optional<std::size_t> payload = std::nullopt) {
    const ZmqSocket::Received received = next();
    const Value message = read_control(received.control, 0);
    CHECK_EQ(message.at("t").as_string(), std::string(type));
    CHECK_EQ(received.payload.has_value(), payload.has_value());
    if (payload) CHECK_EQ(received.payload->size(), *payload);
    return message;
  }
  void hear(const Map& message, std::optional<std::size_t> payload = std::nullopt) {
    std::optional<ZmqMessage> frame;
    if (payload) frame.emplace(std::string(*payload, 'x'));
    peer->understand(Value(message), frame, reports);
  }

  Group group;
  std::unique_ptr<ZmqSocket> ours, theirs;
  std::unique_ptr<MessagePeer> peer;
  Reports reports;
};

/// `says` ends in Error(protocol) that has `text` in it.
inline void refused(const std::string& text, const std::function<void(Ends&)>& says) {
  Ends ends;
  const Error error = error_of([&] { says(ends); });
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(), text);
}

}  // namespace vccl
