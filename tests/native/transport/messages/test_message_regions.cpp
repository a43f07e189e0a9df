// Messages from memory that was added after the group was made: in place where peers can map it, staged where
// they cannot, and what becomes of announcements that are wrong.
#include <fcntl.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/odd_files.hpp"
#include "tests/native/transport/rounds.hpp"
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/messages/mapped_port.hpp"

namespace vccl {
namespace {

constexpr std::size_t kLong = 1'000'003;

/// How often this process has mapped the file.
int mappings_of(std::uint64_t inode) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, access, offset, device;
    std::uint64_t found = 0;
    fields >> range >> access >> offset >> device >> found;
    count += found == inode && line.find("memfd:") != std::string::npos;
  }
  return count;
}

std::uint64_t inode_of(const TestRegion& region) {
  return identify_shared_memory(region.region().fd).inode;
}

std::unique_ptr<Communicator> join_without(Store& store, int rank, int size) {
  return Communicator::create(store, test_config(rank, size));
}

/// A long message from `region` of rank 0 to rank 1, which checks it.
void pass_from(Communicator& c, TestRegion& region, std::uint64_t seed) {
  if (c.rank() == 0) {
    fill(region.span(seed, kLong), seed);
    send(c, 1, 3, region.span(seed, kLong)).get();
  } else {
    std::vector<std::byte> in(kLong);
    CHECK_EQ(receive(c, 0, 3, in).get(), 0);
    check_content(in, seed);
  }
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(random_messages_between_processes_that_add_regions) {
  for (int size : {2, 3}) {
    FileStore store;
    run_processes(size, [&](int rank) {
      TestRegion region(std::size_t{512} << 20);
      auto c = join_without(store, rank, size);
      for (std::uint64_t round = 0; round < 3; ++round) {
        // Before the first message, in between, and never.
        if (static_cast<std::uint64_t>(rank) == round) c->add_region(region.region());
        run_traffic(*c, region, plan_traffic(size, 60 * size, 40 + round, true), 40 + round);
      }
    });
  }
}

TEST(an_added_region_is_read_in_place) {
  FileStore store;
  run_processes(2, [&](int rank) {
    TestRegion region(4 << 20);
    store.set("inode/" + std::to_string(rank), std::to_string(inode_of(region)));
    auto c = join_without(store, rank, 2);
    const std::uint64_t inode = std::stoull(store.get("inode/0", Deadline::in(kFar)));
    pass_from(*c, region, 1);
    CHECK_EQ(mappings_of(inode), rank == 0 ? 1 : 0);
    c->add_region(region.region());
    pass_from(*c, region, 2);
    pass_from(*c, region, 3);
    CHECK_EQ(mappings_of(inode), 1);
    CHECK(!c->failed());
  });
}

TEST(a_descriptor_that_cannot_be_opened) {
  for (const bool replaced : {false, true}) {
    FileStore store;
    run_processes(2, [&](int rank) {
      TestRegion region(64 << 20), other(64 << 20);
      store.set("inode/" + std::to_string(rank), std::to_string(inode_of(region)));
      auto c = join_without(store, rank, 2);
      Region announced = region.region();
      announced.fd = fcntl(announced.fd, F_DUPFD_CLOEXEC, 0);
      c->add_region(announced);
      // Against the rules, and the same for a peer as a system that does not let it open the descriptor.
      close(announced.fd);
      if (replaced) CHECK_EQ(dup2(other.region().fd, announced.fd), announced.fd);
      for (std::uint64_t seed = 1; seed < 4; ++seed) pass_from(*c, region, seed);
      const std::uint64_t inode = std::stoull(store.get("inode/0", Deadline::in(kFar)));
      CHECK_EQ(mappings_of(inode), rank == 0 ? 1 : 0);
      // Both ways, and the other way round many are offered before the first is asked for.
      run_traffic(*c, region, plan_traffic(2, 12, 5, false), 5);
      if (replaced) close(announced.fd);
    });
  }
}

TEST(no_more_regions_than_allowed) {
  FileStore store;
  run_processes(2, [&](int rank) {
    std::deque<TestRegion> regions;
    for (std::size_t i = 0; i < kMaxRegions + 2; ++i) regions.emplace_back(4 << 20);
    CommunicatorConfig config = test_config(rank, 2);
    for (int i = 0; i < 3; ++i) config.regions.push_back(regions[i].region());
    for (std::size_t i = 0; i < regions.size(); ++i) {
      store.set("inode/" + std::to_string(rank) + "/" + std::to_string(i),
                std::to_string(inode_of(regions[i])));
    }
    auto c = Communicator::create(store, config);
    for (int time = 0; time < 2; ++time) {
      for (const TestRegion& region : regions) c->add_region(region.region());
    }
    for (std::size_t i = 0; i < regions.size(); ++i) pass_from(*c, regions[i], i);
    int mapped = 0;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const std::string key = "inode/" + std::to_string(1 - rank) + "/" + std::to_string(i);
      mapped += mappings_of(std::stoull(store.get(key, Deadline::in(kFar))));
    }
    // Of rank 1 only those that were handed over: nothing has come from the others.
    CHECK_EQ(mapped, rank == 1 ? static_cast<int>(kMaxRegions) : 3);
  });
}

TEST(random_messages_between_threads_that_add_regions) {
  MemoryStore store;
  std::deque<TestRegion> regions;
  for (int rank = 0; rank < 3; ++rank) regions.emplace_back(std::size_t{512} << 20);
  run_threads(3, [&](int rank) {
    auto c = join_without(store, rank, 3);
    // Shared mappings of threads stay until all have left: no rank's memory goes before the last one's.
    for (std::uint64_t round = 0; round < 2; ++round) {
      std::vector<std::thread> adding;
      for (int i = 0; round == 1 && i < 3; ++i) {
        adding.emplace_back([&] { c->add_region(regions[rank].region()); });
      }
      run_traffic(*c, regions[rank], plan_traffic(3, 240, 50 + round, true), 50 + round);
      for (std::thread& thread : adding) thread.join();
    }
    CHECK_EQ(mappings_of(inode_of(regions[rank])), 1);
  });
}

TEST(the_owner_of_a_region_is_kept_while_a_thread_may_read_there) {
  MemoryStore store;
  std::weak_ptr<TestRegion> owner;
  run_threads(2, [&](int rank) {
    auto c = join_without(store, rank, 2);
    if (rank == 0) {
      auto memory = std::make_shared<TestRegion>();
      owner = memory;
      Region region = memory->region();
      region.owner = memory;
      c->add_region(region);
      region.owner.reset();
      send(*c, 1, 1, memory->span(0, kWindow)).get();
      memory.reset();
      CHECK(!owner.expired());
      c.reset();
      store.set("left", "1");
      return;
    }
    std::vector<std::byte> bytes(kWindow);
    receive(*c, 0, 1, bytes).get();
    store.get("left", Deadline::in(kFar));
    CHECK(!owner.expired());  // this rank has mapped the region
  });
  CHECK(owner.expired());
}

TEST(windows_of_operations_stay_as_they_are) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    TestRegion blocks;
    auto c = join_without(store, rank, 3);
    c->add_region(blocks.region());
    check_rounds(*c, blocks);
    for (std::size_t i = 0; i < 5; ++i) pass_window(*c, blocks.span(i, kWindow));
  });
}

TEST(memory_that_cannot_be_a_region) {
  MemoryStore store;
  auto c = join_without(store, 0, 1);
  const FileDescriptor unsealed(memfd_create("test-region", MFD_CLOEXEC));
  CHECK_EQ(ftruncate(unsealed.get(), 4096), 0);
  TestRegion memory;
  const auto code = [&](const Region& region) { return error_of([&] { c->add_region(region); }).code(); };
  CHECK(code({unsealed.get(), memory.base(), 4096}) == ErrorCode::protocol);
  CHECK(code({-1, memory.base(), 4096}) == ErrorCode::system);
  CHECK(code({memory.region().fd, memory.base(), memory.region().size + 1}) == ErrorCode::invalid);
  CHECK(!c->failed());
  c->add_region(memory.region());
}

/// Two ranks of one host, as threads see it, or as processes of different pid namespaces would.
struct Pair {
  explicit Pair(bool one_space = true) {
    Listener listeners[2];
    MemoryStore store;
    run_threads(2, [&](int rank) {
      std::vector<RankRecord> records;
      for (int i = 0; i < 2; ++i) {
        const std::string space = one_space ? "space" : "space" + std::to_string(i);
        records.push_back({i, "machine", "host", getpid(), space, listeners[i].name()});
      }
      groups[rank].name = "test";
      groups[rank].rank = rank;
      groups[rank].size = 2;
      groups[rank].host =
          form_host_group(store, {}, records, rank, {}, listeners[rank], Deadline::in(Milliseconds(300'000)));
      failures[rank].emplace(groups[rank]);
    });
  }
  RegionTable& table(int rank) const { return groups[0].host.messages().regions(rank); }
  MessageChannel channel(int from, int to) const { return groups[0].host.messages().channel(from, to); }

  Group groups[2];
  std::optional<FailureChannel> failures[2];
  AddedRegions added[2];
};

struct Sink : MessageSink {
  void offered(int, const Envelope& envelope, std::optional<std::span<const std::byte>>) override {
    offers.push_back(envelope.id);
  }
  void sent(std::uint64_t id) override { sends.push_back(id); }
  void taken(int, std::uint64_t id) override { takes.push_back(id); }
  bool awaits(int) const override { return false; }
  void lost(int, ErrorCode, const std::string&) override {}
  std::vector<std::uint64_t> offers, sends, takes;
};

void run(MappedPort& port, Sink& sink) {
  while (port.progress(sink)) {
  }
}

Packet offer(std::uint64_t id, std::uint64_t bytes, std::uint64_t offset = 0, std::uint32_t region = 0) {
  Packet packet{};
  packet.kind = PacketKind::mapped;
  packet.id = id;
  packet.bytes = bytes;
  packet.offset = offset;
  packet.region = region;
  return packet;
}

void write(ChannelWriter& writer, const Packet& packet) {
  CHECK(writer.push(packet));
  writer.publish();
}

TEST(the_sender_remembers_what_a_peer_cannot_map) {
  Pair pair;
  TestRegion region;
  CHECK(pair.added[1].add(region.region(), pair.table(1), 1));
  CHECK(pair.added[1].add(region.region(), pair.table(1), 1));
  CHECK(!pair.added[1].add(TestRegion().region(), pair.table(1), 1));
  CHECK_EQ(pair.table(1).count.load(), 1u);

  MappedPort port(pair.groups[1], *pair.failures[1], pair.added[1]);
  Sink sink;
  ChannelReader reader(pair.channel(1, 0));
  ChannelWriter writer(pair.channel(0, 1));
  const auto next_kind = [&](std::uint64_t id) {
    const auto bytes = region.span(id * 6000, 5000);
    fill(bytes, id);
    port.send(0, {0, {}, 5000, id}, bytes);
    run(port, sink);
    const Packet packet = reader.next()->packet;
    CHECK_EQ(packet.id, id);
    if (packet.kind == PacketKind::mapped) CHECK_EQ(packet.offset, id * 6000);
    return packet.kind;
  };
  CHECK(next_kind(1) == PacketKind::mapped);
  CHECK(next_kind(2) == PacketKind::mapped);
  for (const std::uint64_t id : {2, 1}) {
    Packet want{};
    want.kind = PacketKind::want;
    want.id = id;
    write(writer, want);
    run(port, sink);
    CHECK_EQ(sink.sends.back(), id);
    check_content({reader.block(), 5000}, id);
    reader.release_block();
  }
  CHECK(next_kind(3) == PacketKind::staged);
  CHECK(!reader.block());
}

/// What rank 0 answers to a message that rank 1 offers from `region`, which it announces as `announced`.
PacketKind answer_to(const AnnouncedRegion& announced, TestRegion& region, bool one_space = true) {
  Pair pair(one_space);
  pair.table(1).regions[0] = announced;
  pair.table(1).count = 1;
  MappedPort port(pair.groups[0], *pair.failures[0], pair.added[0]);
  Sink sink;
  ChannelWriter writer(pair.channel(1, 0));
  ChannelReader reader(pair.channel(0, 1));
  fill(region.span(100, 5000), 8);
  PacketKind kinds[2];
  for (const std::uint64_t id : {1, 2}) {
    write(writer, offer(id, 5000, 100));
    run(port, sink);
    CHECK_EQ(sink.offers.back(), id);
    std::vector<std::byte> memory(5000);
    port.take(1, id, memory);
    run(port, sink);
    const Packet answer = reader.next()->packet;
    CHECK_EQ(answer.id, id);
    kinds[id - 1] = answer.kind;
    if (answer.kind == PacketKind::want) {
      CHECK(sink.takes.empty() || sink.takes.back() != id);
      std::memcpy(writer.free_slot(), region.base() + 100, 5000);
      writer.post();
      run(port, sink);
    }
    CHECK_EQ(sink.takes.back(), id);
    check_content(memory, 8);
  }
  CHECK(kinds[0] == kinds[1]);
  return kinds[0];
}

TEST(wrong_announcements_are_staged) {
  TestRegion region;
  const int fd = region.region().fd;
  const FileIdentity file = identify_shared_memory(fd);
  CHECK(answer_to({fd, 0, file}, region) == PacketKind::done);
  CHECK(answer_to({fd, 0, file}, region, false) == PacketKind::want);  // its pid means nothing here
  CHECK(answer_to({-1, 0, file}, region) == PacketKind::want);
  CHECK(answer_to({INT32_MAX, 0, file}, region) == PacketKind::want);
  CHECK(answer_to({fd, 0, {file.device + 1, file.inode, file.bytes}}, region) == PacketKind::want);
  CHECK(answer_to({fd, 0, {file.device, file.inode + 1, file.bytes}}, region) == PacketKind::want);
  CHECK(answer_to({fd, 0, {file.device, file.inode, file.bytes + 1}}, region) == PacketKind::want);
  CHECK(answer_to({fd, 0, {file.device, file.inode, file.bytes / 2}}, region) == PacketKind::want);
  for (const OddFile& odd : odd_files()) {
    if (odd.announced != identify_shared_memory(odd.fd.get()).bytes || odd.announced == 0) continue;
    CHECK(answer_to({odd.fd.get(), 0, identify_shared_memory(odd.fd.get())}, region) == PacketKind::want);
  }
}

TEST(offers_outside_of_what_was_announced_are_refused) {
  TestRegion region;
  const std::size_t size = region.region().size;
  const FileIdentity file = identify_shared_memory(region.region().fd);
  const auto none = ~std::uint64_t{0};
  const std::pair<std::uint32_t, Packet> cases[] = {
      {0, offer(1, 5000)},      {1, offer(1, 5000, 0, 1)}, {100, offer(1, 5000, 0, kMaxRegions)},
      {1, offer(1, size, 1)},   {1, offer(1, size + 1)},   {1, offer(1, 1, size)},
      {1, offer(1, none, 1)},   {1, offer(1, 1, none)},    {100, offer(1, 5000, 0, 99)},
      {1, offer(1, 1, 0, ~0u)},
  };
  for (const auto& [count, packet] : cases) {
    Pair pair;
    for (AnnouncedRegion& announced : pair.table(1).regions) announced = {region.region().fd, 0, file};
    pair.table(1).count = count;
    MappedPort port(pair.groups[0], *pair.failures[0], pair.added[0]);
    Sink sink;
    ChannelWriter writer(pair.channel(1, 0));
    write(writer, packet);
    const Error error = error_of([&] { run(port, sink); });
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), "rank 1 of group test offered a message outside of its memory");
  }
}

// A thread of the process shares the mapping, which may show less than the file has.
TEST(beyond_what_the_process_has_mapped) {
  Pair pair;
  TestRegion region;
  CHECK(pair.added[1].add({region.region().fd, region.base(), 8192}, pair.table(1), 8));
  MappedPort port(pair.groups[0], *pair.failures[0], pair.added[0]);
  Sink sink;
  ChannelWriter writer(pair.channel(1, 0));
  ChannelReader reader(pair.channel(0, 1));
  std::vector<std::byte> memory(5000);
  for (const std::uint64_t offset : {3192, 3193}) {
    write(writer, offer(offset, 5000, offset));
    run(port, sink);
    port.take(1, offset, memory);
    run(port, sink);
    CHECK(reader.next()->packet.kind == (offset == 3192 ? PacketKind::done : PacketKind::want));
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
