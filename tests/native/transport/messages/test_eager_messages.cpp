// Messages of one block between hosts, which are sent before the receiver has asked for them.
#include "tests/native/transport/messages/message_ends.hpp"
#include "transport/messages/message_streams.hpp"

namespace vccl {
namespace {

constexpr std::size_t kEager = 100'000;
constexpr std::uint64_t kRoom = MessagePeer::kEagerRoom / kEager;  // how many such messages there is room for

Map eager_offer(std::uint64_t id, std::uint64_t bytes) {
  Map fields = offer(id, bytes);
  fields["eager"] = true;
  return fields;
}

/// Rank 0 receives over a stream on which the test sends as rank 1 does.
struct Receiver : Ends {
  Receiver() {
    other.name = "test";
    other.rank = 1;
    other.size = 2;
    theirs_out = std::make_unique<MessageStreams>(other, 0, LinkSettings{.address = "127.0.0.1"});
    std::vector<std::byte> memory(kBlock);
    Map first = vccl::offer(1, memory.size());
    theirs_out->add_to_offer(first);
    hear(first);
    peer->take(1, memory);
    flush();
    theirs_out->read_want(next("want"));
    CHECK(theirs_out->sends());
    send(1, memory);
    await([&] { return reports.got.size() == 1; });
    flush();
    next("done");
  }
  void send(std::uint64_t id, std::span<const std::byte> block) {
    sent.emplace_back(block.begin(), block.end());
    theirs_out->send(id, sent.back(), sent.size());
  }
  void await(const std::function<bool()>& there) {
    const Deadline deadline = Deadline::in(kFar);
    while (!there() && !deadline.passed()) {
      peer->read_stream(reports);
      peer->place_kept(reports);
      usleep(100);
    }
    CHECK(there());
  }
  /// Reads until `count` blocks have come.
  void read(int count) {
    const Deadline deadline = Deadline::in(kFar);
    while (count > 0 && !deadline.passed()) count -= peer->read_stream(reports) > 0;
    CHECK_EQ(count, 0);
  }

  Group other;
  std::unique_ptr<MessageStreams> theirs_out;
  std::deque<std::vector<std::byte>> sent;  // the stream reads it until it was received
};

void refused_by_receiver(const std::string& text, const std::function<void(Receiver&)>& says) {
  Receiver receiver;
  const Error error = error_of([&] { says(receiver); });
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(), text);
}

// The offer and the block come over different connections, so either may be first, and the receive may be
// called at any time.
TEST(a_block_finds_its_message_whatever_comes_first) {
  Receiver r;
  std::vector<std::byte> out(kEager), in(kEager);
  std::uint64_t id = 1;
  const auto check = [&](const std::vector<int>& order) {
    fill(out, ++id);
    std::fill(in.begin(), in.end(), std::byte{});
    for (const int step : order) {
      if (step == 0) r.hear(eager_offer(id, kEager));
      if (step == 1) r.peer->take(id, in);
      if (step == 2) {
        r.send(id, out);
        r.read(1);
      }
    }
    r.await([&] { return r.reports.got.back() == id; });
    check_content(in, id);
  };
  check({0, 1, 2});
  check({0, 2, 1});
  check({2, 0, 1});
}

// So that the sender can send other messages over the stream meanwhile.
TEST(kept_blocks_leave_the_window) {
  Receiver r;
  std::vector<std::byte> out(MessagePeer::kShortBytes + 1);
  for (std::uint64_t id = 2; id < 2 + MessageStreams::kWindow; ++id) {
    r.hear(eager_offer(id, out.size()));
    r.send(id, out);
  }
  r.read(static_cast<int>(MessageStreams::kWindow));
  r.flush();
  std::uint64_t told = 0;
  while (told < MessageStreams::kWindow) told = r.next("got").at("blocks").as_uint();
  CHECK(r.reports.got.size() == 1);
}

TEST(what_no_peer_sends_unasked) {
  std::vector<std::byte> out(kEager);
  refused_by_receiver("sent more bytes unasked than there is room for", [&](Receiver& r) {
    for (std::uint64_t id = 2; id <= kRoom + 2; ++id) {
      r.send(id, out);
      r.read(1);
    }
  });
  refused_by_receiver("sent message 2 twice", [&](Receiver& r) {
    for (int i = 0; i < 2; ++i) r.send(2, out);
    r.read(2);
  });
  refused_by_receiver("sent 5 bytes of message 2 unasked", [&](Receiver& r) {
    r.send(2, std::span(out).first(5));
    r.read(1);
  });
  refused_by_receiver("sent message 2 of 100000 bytes unasked", [&](Receiver& r) {
    r.send(2, out);
    r.read(1);
    r.hear(vccl::offer(2, kEager));
  });
  refused_by_receiver("unasked", [&](Receiver& r) { r.hear(eager_offer(2, kBlock + 1)); });
  refused_by_receiver("a block of message 2, which nobody asked for", [&](Receiver& r) {
    r.hear(vccl::offer(2, kEager));
    r.send(2, out);
    r.read(1);
  });
  refused_by_receiver("a block of message 1, which nobody asked for", [&](Receiver& r) {
    r.send(1, out);
    r.read(1);
  });
  refused_by_receiver("that are not the next block", [&](Receiver& r) {
    r.hear(eager_offer(2, kEager - 1));
    r.peer->take(2, out);
    r.send(2, out);
    r.read(1);
  });
}

// The sender keeps the bound, and offers what is beyond it.
TEST(no_more_unasked_than_the_peer_has_room_for) {
  Ends ends;
  Group other;
  other.name = "test";
  other.rank = 1;
  other.size = 2;
  MessageStreams theirs_in(other, 0, LinkSettings{.address = "127.0.0.1"});
  std::vector<std::byte> memory(kBlock + 1);
  std::uint64_t id = 1;
  const auto offer_next = [&](std::size_t bytes) {
    ends.offer(envelope(id++, bytes), {memory.data(), bytes});
    ends.flush();
    return ends.next("offer");
  };
  const auto read = [&](std::uint64_t of) {
    const Deadline deadline = Deadline::in(kFar);
    std::optional<RemoteBlock> block;
    while (!block && !deadline.passed()) block = theirs_in.receive();
    CHECK(block && block->sequence == of);
  };
  // There is no stream before the first answer.
  const Value first = offer_next(kEager);
  CHECK(!first.has("eager"));
  theirs_in.read_offer(first);
  Map want = about("want", 1);
  theirs_in.add_to_want(want);
  ends.hear(want);
  ends.flush();
  read(1);
  ends.hear(about("done", 1));

  CHECK(!offer_next(kBlock + 1).has("eager"));  // id 2
  for (std::uint64_t i = 0; i < kRoom; ++i) {
    CHECK(offer_next(kEager).has("eager"));
    read(id - 1);
    ends.hear({{"t", "got"}, {"short", 0}, {"offers", 0}, {"blocks", 2 + i}});
  }
  CHECK(!offer_next(kEager).has("eager"));
  ends.hear(about("done", 3));
  CHECK_EQ(ends.reports.done.back(), 3u);
  CHECK(offer_next(kEager).has("eager"));
  CHECK(!offer_next(kEager).has("eager"));
  const Error error = error_of([&] { ends.hear(about("want", 4)); });
  check_contains(error.what(), "asked for message 4, which it was not offered");
}

// Nobody receives the first ones: what comes behind them gets through.
TEST(messages_that_nobody_receives_hold_up_no_other) {
  find_zmq_for_tests();
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = std::to_string(rank);
    auto c = Communicator::create(store, config);
    const std::size_t lengths[] = {kEager, kBlock, kBlock + 1, MessagePeer::kShortBytes, 5'000'000};
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Outcome> all;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 40; ++i) {
        const std::size_t bytes = lengths[i % 5];
        fill(out.emplace_back(bytes), static_cast<std::uint64_t>(100 * rank + i));
        all.push_back(send(*c, 1 - rank, 1000 * round + i, out.back()));
      }
      for (int i = 39; i >= 0; --i) {
        in.emplace_back(lengths[i % 5]);
        CHECK_EQ(receive(*c, 1 - rank, 1000 * round + i, in.back()).get(), 1 - rank);
        check_content(in.back(), static_cast<std::uint64_t>(100 * (1 - rank) + i));
      }
      for (Outcome& sent : all) sent.get();
      all.clear();
      out.clear();
      in.clear();
    }
    CHECK(!c->failed());
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
