// What is said between two hosts about messages: what a rank lets a peer say, how much it sends unasked, and
// who may open its listener.
#include "transport/messages/message_peer.hpp"

#include "tests/native/transport/messages/message_ends.hpp"

namespace vccl {
namespace {

TEST(no_more_blocks_than_the_peer_has_room_for) {
  Ends ends;
  const std::size_t blocks = 2 * MessagePeer::kWindow + 3;
  std::vector<std::byte> memory(blocks * kBlock - 7);
  fill(memory, 5);
  CHECK(!ends.offer(envelope(1, memory.size()), memory));
  ends.flush();
  CHECK_EQ(ends.next("offer").at("bytes").as_uint(), memory.size());
  ends.hear(about("want", 1));
  std::size_t received = 0, asked = 0;
  while (received < memory.size()) {
    ends.flush();
    for (; asked < blocks && asked < received / kBlock + MessagePeer::kWindow; ++asked) {
      const std::size_t bytes = std::min(kBlock, memory.size() - asked * kBlock);
      CHECK_EQ(ends.next("block", bytes).at("at").as_uint(), asked * kBlock);
    }
    // Nothing was sent beyond these: the next that comes is what was said after them.
    ends.ours->send(control_message("ping"));
    ends.next("ping");
    CHECK(ends.reports.done.empty());
    received = std::min(memory.size(), received + 3 * kBlock);
    ends.hear({{"t", "got"},
               {"short", 0},
               {"offers", 0},
               {"blocks", std::min(asked, (received + kBlock - 1) / kBlock)}});
  }
  ends.hear(about("done", 1));
  CHECK((ends.reports.done == std::vector<std::uint64_t>{1}));
}

TEST(no_more_short_messages_than_the_peer_has_room_for) {
  Ends ends;
  std::vector<std::byte> memory(kShort);
  const auto room = MessagePeer::kShortRoom / kShort;
  std::uint64_t id = 0;
  for (; id < room; ++id) CHECK(ends.offer(envelope(id + 1, kShort), memory));
  CHECK(!ends.offer(envelope(++id, 1), {memory.data(), 1}));
  CHECK(ends.offer(envelope(++id, 0), {}));
  ends.flush();
  for (std::uint64_t i = 0; i < room; ++i) ends.next("offer", kShort);
  ends.next("offer");
  ends.next("offer", 0);
  ends.hear({{"t", "got"}, {"short", kShort}, {"offers", 0}, {"blocks", 0}});
  CHECK(ends.offer(envelope(++id, kShort), memory));
  CHECK(!ends.offer(envelope(++id, 1), {memory.data(), 1}));
  // The one that found no room is sent like a long one.
  ends.hear(about("want", room + 1));
  ends.flush();
  ends.next("offer", kShort);
  ends.next("offer");
  CHECK_EQ(ends.next("block", 1).at("id").as_uint(), room + 1);
  ends.hear(about("done", room + 1));
  CHECK((ends.reports.done == std::vector<std::uint64_t>{room + 1}));
}

TEST(no_more_offers_than_the_peer_has_room_for) {
  Ends ends;
  std::uint64_t id = 0;
  while (id < kMostUnreceived) CHECK(ends.offer(envelope(++id, 0), {}));
  CHECK(!ends.offer(envelope(++id, 0), {}));
  CHECK(!ends.offer(envelope(++id, 0), {}));
  ends.hear({{"t", "got"}, {"short", 0}, {"offers", 1}, {"blocks", 0}});
  CHECK((ends.peer->take_copied() == std::vector<std::uint64_t>{kMostUnreceived + 1}));
  ends.hear({{"t", "got"}, {"short", 0}, {"offers", 2}, {"blocks", 0}});
  CHECK((ends.peer->take_copied() == std::vector<std::uint64_t>{kMostUnreceived + 2}));
  refused("has read what it was not sent",
          [&](Ends& e) { e.hear({{"t", "got"}, {"short", 0}, {"offers", 1}, {"blocks", 0}}); });
}

TEST(who_offers_more_is_refused) {
  const auto fill_up = [](Ends& e, std::uint64_t messages, std::size_t bytes) {
    for (std::uint64_t id = 1; id <= messages; ++id) e.hear(offer(id, bytes), bytes);
  };
  refused("offered more messages than it was told", [&](Ends& e) { fill_up(e, kMostUnreceived + 1, 0); });
  const auto most = MessagePeer::kShortRoom / kShort;
  refused("sent more short messages than it was told", [&](Ends& e) { fill_up(e, most + 1, kShort); });
  // What was matched makes room once the peer is told, at the latest when a receive waits for more.
  Ends ends;
  fill_up(ends, kMostUnreceived, 0);
  CHECK(ends.peer->is_full());
  ends.peer->matched(0);
  ends.peer->allow_more();
  ends.flush();
  CHECK_EQ(ends.next("got").at("offers").as_uint(), 1u);
  ends.hear(offer(kMostUnreceived + 1, 0), 0);
  CHECK(ends.peer->is_full());
  ends.peer->allow_more();
  ends.flush();
  CHECK_EQ(ends.next("got").at("offers").as_uint(), kMostUnreceived + 1);
}

TEST(what_is_matched_is_told) {
  Ends ends;
  std::uint64_t told = 0;
  for (std::uint64_t id = 1; id <= 64; ++id) {
    ends.hear(offer(id, kShort), kShort);
    ends.peer->matched(kShort);
    ends.flush();
    if (id * kShort - told < MessagePeer::kShortRoom / 4) continue;
    told = id * kShort;
    CHECK_EQ(ends.next("got").at("short").as_uint(), told);
  }
  CHECK_EQ(ends.reports.offers, 64);
  std::vector<std::byte> memory(2 * kBlock + 1);
  ends.hear(offer(100, memory.size()));
  CHECK(!ends.reports.with_payload && ends.reports.last.bytes == memory.size());
  ends.peer->take(100, memory);
  for (const std::size_t at : {std::size_t{0}, kBlock, 2 * kBlock}) {
    Map block = about("block", 100);
    block["at"] = std::uint64_t{at};
    ends.hear(block, std::min(kBlock, memory.size() - at));
  }
  ends.flush();
  ends.next("want");
  CHECK_EQ(ends.next("got").at("blocks").as_uint(), 1u);
  CHECK_EQ(ends.next("got").at("blocks").as_uint(), 2u);
  CHECK_EQ(ends.next("done").at("id").as_uint(), 100u);
  CHECK((ends.reports.got == std::vector<std::uint64_t>{100}));
  CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == std::byte{'x'}; }));
}

TEST(what_no_peer_says) {
  const auto begin = [](Ends& ends, std::span<std::byte> memory) {
    ends.hear(offer(5, memory.size()));
    ends.peer->take(5, memory);
  };
  std::vector<std::byte> memory(kBlock + 10);
  Map block = about("block", 5);
  block["at"] = 0;

  refused("rank 1 sent a message of type \"nonsense\"", [&](Ends& e) { e.hear({{"t", "nonsense"}}); });
  refused("offered message 5 out of turn", [&](Ends& e) {
    e.hear(offer(5, 100), 100);
    e.hear(offer(5, 100), 100);
  });
  refused("sent 7 bytes with the offer of a message of 8 bytes", [&](Ends& e) { e.hear(offer(1, 8), 7); });
  refused("bytes with the offer of", [&](Ends& e) { e.hear(offer(1, kShort + 1), kShort + 1); });
  refused("an empty message as a long one", [&](Ends& e) { e.hear(offer(1, 0)); });
  refused("", [&](Ends& e) {
    Map wrong = offer(1, 8);
    wrong["tag"] = std::int64_t{1} << 40;
    e.hear(wrong, 8);
  });
  refused("", [&](Ends& e) {
    Map wrong = offer(1, 8);
    wrong["bytes"] = -8;
    e.hear(wrong, 8);
  });
  refused("a block of message 5, which nobody asked for", [&](Ends& e) { e.hear(block, kBlock); });
  refused("a block of message 5, which nobody asked for", [&](Ends& e) {
    e.hear(offer(5, memory.size()));  // and not taken
    e.hear(block, kBlock);
  });
  refused("a block of message 5 without bytes", [&](Ends& e) {
    begin(e, memory);
    e.hear(block);
  });
  refused("that are not the next block", [&](Ends& e) {
    begin(e, memory);
    e.hear(block, kBlock);
    e.hear(block, kBlock);
  });
  refused("that are not the next block", [&](Ends& e) {
    begin(e, memory);
    e.hear(block, kBlock);
    Map next = block;
    next["at"] = std::uint64_t{kBlock};
    e.hear(next, 11);  // one more than there is room for
  });
  refused("asked for message 9, which it was not offered", [&](Ends& e) { e.hear(about("want", 9)); });
  refused("asked for message 1, which it was not offered", [&](Ends& e) {
    e.offer(envelope(1, memory.size()), memory);
    e.hear(about("want", 1));
    e.hear(about("want", 1));
  });
  refused("is done with message 1, which it was not sent", [&](Ends& e) {
    e.offer(envelope(1, memory.size()), memory);
    e.hear(about("want", 1));
    e.hear(about("done", 1));
  });
  refused("has read what it was not sent",
          [&](Ends& e) { e.hear({{"t", "got"}, {"short", 1}, {"offers", 0}, {"blocks", 0}}); });
  refused("has read what it was not sent", [&](Ends& e) {
    e.offer(envelope(1, 100), {memory.data(), 100});
    e.hear({{"t", "got"}, {"short", 100}, {"offers", 0}, {"blocks", 0}});
    e.hear({{"t", "got"}, {"short", 99}, {"offers", 0}, {"blocks", 0}});
  });
}

/// Keeps what the ranks read about each other's listeners.
class Spy final : public MemoryStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    if (key == "messages") listeners = value;
    MemoryStore::set(key, value);
  }

  std::string listeners;
};

/// A connection to the listener of `rank`, which says hello with the token given, or the right one.
struct Visitor {
  Visitor(const std::string& listeners, int rank, int as, std::optional<std::string> token = std::nullopt) {
    const Value listener =
        msgpack::decode(listeners).at("listeners").as_array().at(static_cast<std::size_t>(rank));
    socket.connect(listener.at("endpoint").as_string(), listener.at("key").as_string());
    socket.send(control_message("hello",
                                {{"rank", as}, {"token", token.value_or(listener.at("token").as_string())}}));
  }
  void say(Map message, std::optional<std::size_t> payload = std::nullopt) {
    const std::string type = message.at("t").as_string();
    const std::string bytes(payload.value_or(0), 'x');
    if (!payload) {
      socket.send(control_message(type.c_str(), std::move(message)));
    } else {
      socket.send(control_message(type.c_str(), std::move(message)),
                  reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    }
  }
  ZmqSocket socket{ZmqSocket::Kind::dealer};
};

/// Ranks 0 and 1 on two hosts.
void two_hosts(Spy& store, const std::function<void(Communicator&)>& body) {
  find_zmq_for_tests();
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = rank ? "b" : "a";
    auto c = Communicator::create(store, config);
    body(*c);
  });
}

/// One short message each way: by then, both listeners have been looked at.
void exchange(Communicator& c, int tag) {
  std::vector<std::byte> out(100), in(100);
  fill(out, static_cast<std::uint64_t>(c.rank()));
  Outcome sent = send(c, 1 - c.rank(), tag, out);
  CHECK_EQ(receive(c, 1 - c.rank(), tag, in).get(), 1 - c.rank());
  check_content(in, static_cast<std::uint64_t>(1 - c.rank()));
  sent.get();
}

TEST(strangers_are_not_let_in) {
  Spy store;
  two_hosts(store, [&](Communicator& c) {
    std::vector<std::unique_ptr<Visitor>> visitors;
    if (c.rank() == 0) {
      for (const int listener : {0, 1}) {
        // Wrong: the token, the rank (none, one of the same host, one on a host of no rank), the first
        // message.
        visitors.push_back(
            std::make_unique<Visitor>(store.listeners, listener, 1 - listener, "another token"));
        for (const int as : {-1, listener, 2})
          visitors.push_back(std::make_unique<Visitor>(store.listeners, listener, as));
        visitors.push_back(std::make_unique<Visitor>(store.listeners, listener, 1 - listener, ""));
        for (auto& visitor : visitors) {
          visitor->say(offer(1, 100), 100);
          visitor->say({{"t", "fail"}, {"code", 0}, {"text", "a lie"}});
          visitor->say({{"t", "left"}});
          visitor->socket.send("no message at all");
        }
      }
    }
    for (int round = 0; round < 20; ++round) {
      exchange(c, 3);
      usleep(5'000);
      if (round == 10) visitors.clear();
    }
    CHECK(!c.failed());
  });
}

TEST(a_peer_that_breaks_the_protocol_fails_the_group) {
  for (const std::string what : {"want", "version", "frames", "no type"}) {
    Spy store;
    std::promise<void> failed;
    two_hosts(store, [&](Communicator& c) {
      std::byte byte{};
      if (c.rank() == 1) {
        // Speaks as rank 1, which uses its messages only when the visitor was let in: the first who comes is.
        Visitor visitor(store.listeners, 0, 1);
        if (what == "want") visitor.say(about("want", 77));
        if (what == "version") visitor.socket.send(msgpack::encode(Map{{"v", 77}, {"t", "left"}}));
        if (what == "no type") visitor.socket.send(encode_record({}));
        if (what == "frames") {
          ZmqMessage payload(std::string("x"));
          visitor.socket.post({}, control_message("ping"), &payload);
          visitor.socket.send("no message");
        }
        CHECK(failed.get_future().wait_for(kFar) == std::future_status::ready);
        // It may not be told why, as the visitor has its place.
        error_of([&] { receive(c, 0, 5, {&byte, 1}).get(); });
        return;
      }
      const Error error = error_of([&] { receive(c, kAnySource, 5, {&byte, 1}).get(); });
      failed.set_value();
      CHECK(error.code() == ErrorCode::protocol);
      if (what == "want")
        check_contains(error.what(), "rank 1 asked for message 77, which it was not offered");
      if (what == "no type") {
        check_contains(
            error.what(),
            "rank 1 sent a message that no rank sends: malformed control message: the key \"t\" is "
            "missing (group test, seen by rank 0)");
      }
      if (what == "version") check_contains(error.what(), "rank 1 speaks version 77 to ranks");
    });
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
