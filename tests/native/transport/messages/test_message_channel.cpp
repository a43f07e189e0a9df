// The parts below messages: channels and matching, and what a peer that writes nonsense can do.
#include <cstring>

#include "tests/native/transport/harness.hpp"
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/messages/mapped_port.hpp"
#include "transport/messages/message_matching.hpp"
#include "transport/shared/message_channel.hpp"

namespace vccl {
namespace {

/// One channel in memory of its own.
struct TestChannel {
  TestChannel() : counters(), body(MessageChannel::kBodyBytes), channel{&counters, body.data()} {}
  ChannelCounters counters;
  std::vector<std::byte> body;
  MessageChannel channel;
};

Packet eager(std::uint64_t id, std::size_t bytes) {
  Packet packet{};
  packet.kind = PacketKind::eager;
  packet.id = id;
  packet.bytes = bytes;
  return packet;
}

TEST(a_channel_keeps_order_and_bytes) {
  TestChannel memory;
  std::thread sender([&] {
    ChannelWriter writer(memory.channel);
    for (std::uint64_t id = 0; id < 20'000;) {
      std::vector<std::byte> payload(id * 37 % (MessageChannel::kEagerBytes + 1));
      for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = pattern(1, id, i);
      if (writer.push(eager(id, payload.size()), payload)) {
        ++id;
        if (id % 3 == 0) writer.publish();
      } else {
        writer.publish();
        std::this_thread::yield();
      }
    }
    writer.publish();
  });
  ChannelReader reader(memory.channel);
  bool right = true;
  for (std::uint64_t id = 0; id < 20'000;) {
    const auto entry = reader.next();
    if (!entry) {
      reader.release();
      std::this_thread::yield();
      continue;
    }
    right &= entry->packet.id == id && entry->payload.size() == id * 37 % (MessageChannel::kEagerBytes + 1);
    for (std::size_t i = 0; i < entry->payload.size(); ++i) right &= entry->payload[i] == pattern(1, id, i);
    if (++id % 5 == 0) reader.release();
  }
  sender.join();
  CHECK(right);
  CHECK(!reader.next());
}

TEST(a_full_channel_takes_no_more) {
  TestChannel memory;
  ChannelWriter writer(memory.channel);
  ChannelReader reader(memory.channel);
  for (int round = 0; round < 3; ++round) {
    std::size_t pushed = 0;
    while (writer.push(eager(pushed, 0))) ++pushed;
    CHECK_EQ(pushed, MessageChannel::kRingBytes / sizeof(Packet));
    CHECK(!reader.next());  // nothing is visible before it is published
    CHECK(writer.publish());
    CHECK(writer.half_full());
    while (reader.next()) {
    }
    CHECK(!writer.push(eager(0, 0)));  // nor free before it is given back
    CHECK(reader.release());
    CHECK(!writer.half_full());
  }
}

TEST(slots_are_used_in_turn) {
  TestChannel memory;
  ChannelWriter writer(memory.channel);
  ChannelReader reader(memory.channel);
  CHECK(!reader.block());
  for (std::uint64_t block = 0; block < 3 * MessageChannel::kSlots; ++block) {
    std::byte* slot = writer.free_slot();
    CHECK(slot != nullptr);
    *slot = static_cast<std::byte>(block);
    writer.post();
    if (block + 1 < MessageChannel::kSlots) continue;
    CHECK(!writer.free_slot());
    CHECK(*reader.block() == static_cast<std::byte>(block + 1 - MessageChannel::kSlots));
    reader.release_block();
  }
}

TEST(nonsense_in_a_channel_is_refused) {
  const auto refused = [](const Packet& packet, std::uint64_t written) {
    TestChannel memory;
    std::memcpy(memory.body.data(), &packet, sizeof packet);
    memory.counters.written = written;
    ChannelReader reader(memory.channel);
    return error_of([&] { reader.next(); }).code() == ErrorCode::protocol;
  };
  CHECK(refused(eager(0, 0), MessageChannel::kRingBytes + 64));
  CHECK(refused(eager(0, 0), 63));
  CHECK(refused(eager(0, 64), 64));
  CHECK(refused(eager(0, 65), 128));
  CHECK(refused(eager(0, MessageChannel::kEagerBytes + 1), MessageChannel::kRingBytes));
  CHECK(refused(eager(0, ~std::uint64_t{0}), MessageChannel::kRingBytes));
  CHECK(refused(eager(0, ~std::uint64_t{0} - 63), MessageChannel::kRingBytes));
}

/// Writes `packet` into rank 1's channel to rank 0, in its name, and returns what rank 0 makes of it.
Error error_after(const Packet& packet) {
  MemoryStore store;
  std::optional<Error> found;
  TestRegion regions[2];
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.regions = {regions[rank].region()};
    Group group;
    Listener listener;
    std::vector<RankRecord> records;
    const std::string key = "listener/" + std::to_string(rank);
    store.set(key, listener.name());
    for (int i = 0; i < 2; ++i) {
      const std::string name =
          store.get("listener/" + std::to_string(i), Deadline::in(Milliseconds(300'000)));
      records.push_back({i, "machine", "host", getpid(), "space", name});
    }
    group.name = "test";
    group.rank = rank;
    group.size = 2;
    group.regions = config.regions;
    group.host = form_host_group(store, {}, records, rank, config.regions, listener,
                                 Deadline::in(Milliseconds(300'000)));
    if (rank == 1) {
      ChannelWriter writer(group.host.messages().channel(1, 0));
      CHECK(writer.push(packet));
      writer.publish();
      store.set("written", "1");
      return;
    }
    store.get("written", Deadline::in(Milliseconds(300'000)));
    struct NoSink : MessageSink {
      void offered(int, const Envelope&, std::optional<std::span<const std::byte>>) override {}
      void sent(std::uint64_t) override {}
      void taken(int, std::uint64_t) override {}
      bool awaits(int) const override { return false; }
      void lost(int, ErrorCode, const std::string&) override {}
    } sink;
    const FailureChannel failures(group);
    const AddedRegions added;
    MappedPort port(group, failures, added);
    std::vector<std::byte> large(10'000);
    port.send(1, {0, {}, large.size(), 7}, large);                 // staged: to be wanted
    port.send(1, {0, {}, 10'000, 8}, regions[0].span(0, 10'000));  // mapped: to be taken
    found.emplace(error_of([&] {
      while (port.progress(sink)) {
      }
    }));
  });
  return *found;
}

TEST(nonsense_of_a_peer_is_refused) {
  const std::size_t region = TestRegion().region().size;
  const auto packet = [](PacketKind kind, std::uint64_t id, std::uint64_t bytes = 0, std::uint64_t offset = 0,
                         std::uint32_t number = 0) {
    Packet made{};
    made.kind = kind;
    made.id = id;
    made.bytes = bytes;
    made.offset = offset;
    made.region = number;
    return made;
  };
  const std::pair<Packet, const char*> cases[] = {
      {packet(PacketKind::mapped, 1, region, 1), "offered a message outside of its memory"},
      {packet(PacketKind::mapped, 1, 1, region), "offered a message outside of its memory"},
      {packet(PacketKind::mapped, 1, ~std::uint64_t{0}, 1), "offered a message outside of its memory"},
      {packet(PacketKind::mapped, 1, 1, ~std::uint64_t{0}), "offered a message outside of its memory"},
      {packet(PacketKind::mapped, 1, 1, 0, 1), "offered a message outside of its memory"},
      {packet(PacketKind::own, 8, 5000), "offered a message as its own"},
      {packet(PacketKind::want, 6), "asked for a message that it was not offered"},
      {packet(PacketKind::want, 8), "asked for a message that it was not offered"},
      {packet(PacketKind::done, 6), "took a message that it was not offered"},
      {packet(PacketKind::done, 7), "took a message that it was not offered"},
      {packet(static_cast<PacketKind>(17), 1), "wrote a packet of unknown kind"},
  };
  for (const auto& [made, text] : cases) {
    const Error error = error_after(made);
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), std::string("rank 1 of group test ") + text);
  }
}

Arrival arrival(int source, int tag, std::uint64_t id) {
  return {source, {tag, {}, 0, id}, true, {}};
}

TEST(receives_get_the_first_that_fits) {
  MessageMatching matching;
  matching.add_arrival(arrival(2, 5, 1));
  matching.add_arrival(arrival(1, 5, 2));
  matching.add_arrival(arrival(1, 6, 3));
  matching.add_arrival(arrival(2, 5, 4));
  CHECK_EQ(matching.unreceived(kAnySource).size(), 2u);
  CHECK_EQ(matching.unreceived(2).at(5), 2u);
  CHECK(!matching.find_arrival(2, 6));
  CHECK(!matching.find_arrival(kAnySource, 7));
  CHECK_EQ(matching.find_arrival(1, 5)->envelope.id, 2u);
  CHECK_EQ(matching.find_arrival(kAnySource, 5)->envelope.id, 1u);
  CHECK_EQ(matching.find_arrival(kAnySource, 5)->envelope.id, 4u);
  CHECK_EQ(matching.find_arrival(kAnySource, 6)->envelope.id, 3u);
  CHECK(matching.unreceived(kAnySource).empty());
}

TEST(messages_go_to_the_first_receive_that_fits) {
  MessageMatching matching;
  matching.add_receive(1, 2, 5);
  matching.add_receive(2, kAnySource, 5);
  matching.add_receive(3, 1, 5);
  matching.add_receive(4, kAnySource, 6);
  CHECK_EQ(*matching.find_receive(1, 5), 2u);
  CHECK_EQ(*matching.find_receive(1, 5), 3u);
  CHECK(!matching.find_receive(1, 5));
  CHECK_EQ(*matching.find_receive(2, 5), 1u);
  CHECK(!matching.find_receive(3, 7));
  CHECK_EQ(*matching.find_receive(3, 6), 4u);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
