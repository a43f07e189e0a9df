// The proof that ranks share a host: who passes, who is turned away, and what becomes of them.
#include "transport/bootstrap/form_host_group.hpp"

#include <sys/stat.h>

#include <thread>

#include "tests/native/transport/meeting/deadly_store.hpp"
#include "tests/native/transport/meeting/doors.hpp"
#include "tests/native/transport/odd_files.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/interruption_check.hpp"
#include "transport/support/protocol.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Map;

constexpr Milliseconds kLong{300'000};

std::vector<RankRecord> records(const Listener& leader, int ranks) {
  std::vector<RankRecord> result;
  for (int rank = 0; rank < ranks; ++rank) {
    result.push_back(
        {rank, machine_key(), "", getpid(), pid_namespace(), rank ? "vccl-nobody" : leader.name()});
  }
  return result;
}

/// Plays rank 1 up to the point where the control memory has come. `regions`: descriptors and what is said
/// of their files' sizes.
Channel join_by_hand(MemoryStore& store, const Listener& leader, std::shared_ptr<Mapping>& control,
                     const std::vector<std::pair<int, std::uint64_t>>& regions = {}) {
  Channel channel = Channel::connect(leader.name(), Deadline::in(kLong));
  store.set("reach/1", encode_record({{"ok", true}, {"why", ""}}));
  std::vector<int> descriptors;
  msgpack::Array bytes;
  for (const auto& [fd, announced] : regions) {
    descriptors.push_back(fd);
    bytes.emplace_back(announced);
  }
  channel.send(control_message("hello", {{"rank", 1}, {"bytes", bytes}}), descriptors, Deadline::in(kLong));
  Channel::Packet reply = channel.receive(Deadline::in(kLong));
  CHECK(msgpack::decode(reply.bytes).at("t") == msgpack::Value("control"));
  CHECK_EQ(reply.descriptors.size(), 1u);
  control = map_shared_memory(reply.descriptors[0].get(), ControlLayout(2).bytes());
  return channel;
}

std::string nonce_of(const Mapping& control) {
  return {ControlLayout::header(control.base())->nonce, ControlHeader::kNonceBytes};
}

/// Tells the leader the nonce that rank 1 has read in the control memory.
void prove(Channel& channel, const std::string& nonce) {
  channel.send(control_message("proof", {{"nonce", msgpack::Binary{nonce}}}), {}, Deadline::in(kLong));
}

TEST(a_wrong_nonce_is_no_proof) {
  MemoryStore store;
  Listener listener;
  Error error(ErrorCode::system, "");
  std::thread leader([&] {
    error = error_of(
        [&] { form_host_group(store, {}, records(listener, 2), 0, {}, listener, Deadline::in(kLong)); });
  });
  std::shared_ptr<Mapping> control;
  Channel channel = join_by_hand(store, listener, control);
  std::string nonce = nonce_of(*control);
  nonce[0] = static_cast<char>(nonce[0] ^ 1);
  prove(channel, nonce);
  leader.join();
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(),
                 "rank 1 failed to take the shared memory of rank 0: it returned another nonce");
}

TEST(the_right_nonce_is) {
  MemoryStore store;
  Listener listener;
  TestRegion region;
  HostGroup group;
  std::thread leader([&] {
    const Region own = region.region();
    group = form_host_group(store, {}, records(listener, 2), 0, {&own, 1}, listener, Deadline::in(kLong));
  });
  std::shared_ptr<Mapping> control;
  Channel channel = join_by_hand(store, listener, control);
  prove(channel, nonce_of(*control));
  leader.join();
  CHECK((group.ranks == std::vector<int>{0, 1}));
  CHECK_EQ(group.regions[0].size(), 1u);
  CHECK(msgpack::decode(channel.receive(Deadline::in(kLong)).bytes).at("ranks") ==
        msgpack::Value(msgpack::Array{0, 1}));
  Channel::Packet first = channel.receive(Deadline::in(kLong));
  const std::uint64_t bytes = region.region().size;
  CHECK(msgpack::decode(first.bytes).at("ranks").as_array().at(0).at("bytes") ==
        msgpack::Value(msgpack::Array{bytes}));
  CHECK(map_shared_memory(first.descriptors.at(0).get(), bytes) == group.regions[0][0]);
}

/// A control memory as a leader makes it.
FileDescriptor make_control_memory(int ranks) {
  const std::size_t bytes = ControlLayout(ranks).bytes();
  FileDescriptor fd = make_shared_memory("control", bytes);
  ControlLayout::header(map_shared_memory(fd.get(), bytes)->base())->magic = ControlHeader::kMagic;
  return fd;
}

/// The error of a leader to whom rank 1 hands over a region.
Error error_of_leader(int fd, std::uint64_t announced) {
  MemoryStore store;
  Listener listener;
  Error error(ErrorCode::system, "");
  std::thread leader([&] {
    error = error_of(
        [&] { form_host_group(store, {}, records(listener, 2), 0, {}, listener, Deadline::in(kLong)); });
  });
  std::shared_ptr<Mapping> control;
  Channel channel = join_by_hand(store, listener, control, {{fd, announced}});
  prove(channel, nonce_of(*control));
  leader.join();
  const msgpack::Value failed = msgpack::decode(channel.receive(Deadline::in(kLong)).bytes);
  CHECK(failed.at("t") == msgpack::Value("failed"));
  CHECK_EQ(failed.at("why").as_string(), error.what());
  return error;
}

TEST(a_leader_does_not_map_what_no_rank_makes) {
  for (const OddFile& odd : odd_files()) {
    const Error error = error_of_leader(odd.fd.get(), odd.announced);
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(),
                   "rank 0 cannot use region 0 of rank 1: a shared memory region is not mapped");
    check_contains(error.what(), odd.complaint);
  }
}

using Send = std::function<void(const char* type, Map fields, std::vector<int> descriptors)>;

/// Leads a group of two by hand: hands `control` over, announces both ranks if the member takes it, and lets
/// `hand_out` send the rest. Returns the member's error.
Error error_of_member(int control, const std::function<void(const Send&)>& hand_out) {
  MemoryStore store;
  Listener listener;
  Error error(ErrorCode::system, "");
  std::thread member([&] {
    Listener own;
    error =
        error_of([&] { form_host_group(store, {}, records(listener, 2), 1, {}, own, Deadline::in(kLong)); });
  });
  Channel channel = accept_one(listener);
  const Send send = [&](const char* type, Map fields, std::vector<int> descriptors) {
    channel.send(control_message(type, std::move(fields)), descriptors, Deadline::in(kLong));
  };
  channel.receive(Deadline::in(kLong));
  send("control", {{"ranks", 2}}, {control});
  try {
    channel.receive(Deadline::in(kLong));
    send("group", {{"ranks", msgpack::Array{0, 1}}}, {});
    hand_out(send);
  } catch (const Error&) {
    // The member has refused the control memory and hung up.
  }
  member.join();
  return error;
}

// The leader passes on what it was given; one that is at fault itself must not end its members.
TEST(a_member_does_not_map_what_no_rank_makes) {
  for (const bool is_control : {true, false}) {
    for (const OddFile& odd : odd_files(ControlLayout(2).bytes())) {
      const FileDescriptor control = make_control_memory(2);
      const Error error = error_of_member(is_control ? odd.fd.get() : control.get(), [&](const Send& send) {
        if (is_control) return;
        const Map rank{{"rank", 0}, {"bytes", msgpack::Array{odd.announced}}, {"pidfd", false}};
        send("ranks", {{"ranks", msgpack::Array{rank}}}, {odd.fd.get()});
      });
      CHECK(error.code() == ErrorCode::protocol);
      check_contains(error.what(), "the hand-over of shared memory by rank 0 failed: ");
      check_contains(error.what(), odd.complaint);
    }
  }
}

// As many packets as it takes go to each member.
TEST(hundreds_of_descriptors_are_handed_over) {
  const int ranks = 40;
  MemoryStore store;
  std::vector<HostGroup> groups(ranks);
  std::vector<Listener> listeners(ranks);
  std::vector<RankRecord> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(records(listeners[0], 1)[0]), all.back().rank = rank;
  TestRegion regions[kMaxRegions];
  std::vector<Region> given;
  for (TestRegion& region : regions) given.push_back(region.region());
  run_threads(ranks, [&](int rank) {
    groups[rank] = form_host_group(store, {}, all, rank, given, listeners[rank], Deadline::in(kLong));
  });
  for (const HostGroup& group : groups) {
    CHECK_EQ(group.ranks.size(), std::size_t(ranks));
    for (const auto& of_rank : group.regions) CHECK_EQ(of_rank.size(), kMaxRegions);
  }
}

TEST(a_member_refuses_packets_that_do_not_fit) {
  const FileDescriptor region = make_shared_memory("test", 4096);
  const auto entry = [](int rank, bool pidfd) {
    return msgpack::Map{{"rank", rank}, {"bytes", msgpack::Array{4096}}, {"pidfd", pidfd}};
  };
  const std::pair<msgpack::Array, const char*> wrong[] = {
      {{}, "has no ranks"},
      {{entry(1, false)}, "does not fit what was announced"},
      {{entry(0, true)}, "fewer descriptors than it says"},
      {{entry(0, false), entry(1, false)}, "fewer descriptors than it says"},
  };
  for (const auto& [ranks, complaint] : wrong) {
    const FileDescriptor control = make_control_memory(2);
    const Error error = error_of_member(control.get(), [&](const Send& send) {
      send("ranks", {{"ranks", ranks}}, ranks.empty() ? std::vector<int>{} : std::vector<int>{region.get()});
    });
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), complaint);
  }
}

TEST(strangers_of_the_same_user_are_passed_over) {
  MemoryStore store;
  Listener listener;
  HostGroup groups[2];
  std::thread leader([&] {
    groups[0] = form_host_group(store, {}, records(listener, 2), 0, {}, listener, Deadline::in(kLong));
  });
  {
    Channel nonsense = Channel::connect(listener.name(), Deadline::in(kLong));
    nonsense.send("nonsense", {}, Deadline::in(kLong));
    Channel other_rank = Channel::connect(listener.name(), Deadline::in(kLong));
    other_rank.send(control_message("hello", {{"rank", 7}, {"bytes", msgpack::Array{}}}), {},
                    Deadline::in(kLong));
    Channel gone = Channel::connect(listener.name(), Deadline::in(kLong));
  }
  std::thread member([&] {
    Listener own;
    groups[1] = form_host_group(store, {}, records(listener, 2), 1, {}, own, Deadline::in(kLong));
  });
  leader.join();
  member.join();
  for (int rank : {0, 1}) {
    CHECK((groups[rank].ranks == std::vector<int>{0, 1}));
    CHECK_EQ(groups[rank].index, rank);
  }
  CHECK(groups[0].control == groups[1].control);
}

/// Ranks 0 and 1 form a group at a door.
void check_group_forms(Listener& door) {
  MemoryStore store;
  HostGroup groups[2];
  run_threads(2, [&](int rank) {
    Listener own;
    groups[rank] =
        form_host_group(store, {}, records(door, 2), rank, {}, rank ? own : door, Deadline::in(kLong));
    CHECK((groups[rank].ranks == std::vector<int>{0, 1}));
  });
  CHECK(groups[0].control == groups[1].control);
}

// More of them than the leader keeps, and the rest of the queue is full of those that have hung up.
TEST(strangers_of_the_same_user_that_say_nothing_keep_nobody_out) {
  Listener door;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_as_stranger(door.name()));
  fill_queue(door.name());
  check_group_forms(door);
}

// As root only, as below.
TEST(strangers_that_connect_without_end_keep_nobody_out) {
  if (geteuid() != 0) return;
  Listener door;
  Processes strangers(2, [&](int) {
    become_another_user();
    while (true) connect_as_stranger(door.name());
  });
  while (connect_as_stranger(door.name())) sched_yield();
  check_group_forms(door);
  CHECK(door.turned_away() > 0);
}

TEST(a_leader_that_waits_in_vain_counts_connections_of_other_users) {
  if (geteuid() != 0) return;
  Listener door;
  Processes(2, [&](int) {
    become_another_user();
    CHECK(connect_as_stranger(door.name()));
  }).check_ends();
  MemoryStore store;
  const Error error = error_of(
      [&] { form_host_group(store, {}, records(door, 2), 0, {}, door, Deadline::in(Milliseconds(1))); });
  CHECK(error.code() == ErrorCode::timeout);
  CHECK_EQ(std::string(error.what()),
           "rank 0 waited 1 ms for rank 1 to say whether it can share memory with it, and rank 0 closed 2 "
           "connections of other users (uid 65534), which may have kept ranks away");
}

TEST(a_rank_at_a_full_door_says_so) {
  Listener door, own;
  fill_queue(door.name());
  MemoryStore store;
  const auto error_at_door = [&](const Deadline& deadline, const std::function<void()>& look) {
    return error_of([&] { form_host_group(store, {}, records(door, 2), 1, {}, own, deadline, look); });
  };
  const Error late = error_at_door(Deadline::in(Milliseconds(1)), [] {});
  CHECK(late.code() == ErrorCode::timeout);
  CHECK_EQ(std::string(late.what()),
           "rank 1 could not connect to rank 0 within the timeout of 1 ms, because the door of rank 0 was "
           "full of other connections");
  const Error told =
      error_at_door(Deadline::in(kLong), [] { throw Error(ErrorCode::invalid, "rank 2 has failed"); });
  CHECK_EQ(std::string(told.what()), "rank 2 has failed");
  set_interruption_check([] { return std::string("KeyboardInterrupt"); });
  const Error interrupted = error_at_door(Deadline::in(kLong), [] {});
  set_interruption_check(nullptr);
  CHECK(interrupted.code() == ErrorCode::aborted);
  CHECK_EQ(store.keys(), 0u);  // it has not said that it cannot reach the leader
}

// A rank that claims our host and cannot reach us (another container, say) becomes a host of its own.
TEST(who_cannot_be_reached_is_alone) {
  MemoryStore store;
  Listener listener;
  HostGroup groups[3];
  run_threads(3, [&](int rank) {
    auto known = records(listener, 3);
    if (rank == 1) known[0].socket = "vccl-nobody-listens-here";
    Listener own;
    groups[rank] = form_host_group(store, {}, known, rank, {}, rank ? own : listener, Deadline::in(kLong));
  });
  CHECK((groups[0].ranks == std::vector<int>{0, 2}));
  CHECK((groups[1].ranks == std::vector<int>{1}));
  CHECK((groups[2].ranks == std::vector<int>{0, 2}));
  CHECK_EQ(groups[2].index, 1);
  CHECK(groups[1].control != groups[0].control);
}

/// Shows a table in which rank 0's socket has another name, where it is `misled`.
struct Tampered final : Store {
  Store& inner;
  bool misled;
  Tampered(Store& store, bool misled) : inner(store), misled(misled) {}
  void set(const std::string& key, const std::string& value) override { inner.set(key, value); }
  void remove(const std::string& key) override { inner.remove(key); }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::string value = inner.get(key, deadline);
    if (misled && key == "table") value[value.find("vccl-") + 5] ^= 1;
    return value;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    return inner.compare_set(key, expected, value);
  }
};

// The same through a whole group.
TEST(a_group_with_an_unreachable_rank_uses_links) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    find_zmq_for_tests();
    Tampered view(store, rank == 1);
    CommunicatorConfig config = test_config(rank, 3);
    auto c = Communicator::create(view, config);
    CHECK_EQ(c->host_count(), 2);
    CHECK_EQ(c->host_of(0), c->host_of(2));
    CHECK(c->host_of(0) != c->host_of(1));
    Operation operation(*c, {}, {}, Deadline::in(kLong));
    c->right().reserve()[0] = static_cast<std::byte>(rank);
    c->right().commit(1);
    CHECK_EQ(static_cast<int>(c->left().take_committed(1)[0]), c->ring_rank((c->ring_position() + 2) % 3));
    c->left().release();
    operation.finish();
  });
}

// As root only, who alone can become somebody else; otherwise there is no foreign user to test with.
TEST(ranks_of_two_users_share_nothing_and_use_links) {
  if (geteuid() != 0) return;
  FileStore store;
  store.let_everybody_in();
  Processes processes(3, [&](int rank) {
    find_zmq_for_tests();
    zmq_api();
    umask(0);
    if (rank == 1) become_another_user();
    auto c = Communicator::create(store, test_config(rank, 3));
    CHECK_EQ(c->host_count(), 2);
    CHECK(c->host_of(0) == c->host_of(2) && c->host_of(0) != c->host_of(1));
    Operation operation(*c, {}, {}, Deadline::in(kLong));
    c->right().reserve()[0] = static_cast<std::byte>(rank);
    c->right().commit(1);
    CHECK_EQ(static_cast<int>(c->left().take_committed(1)[0]), c->ring_rank((c->ring_position() + 2) % 3));
    c->left().release();
    operation.finish();
  });
  processes.check_ends();
}

// Who cannot reach the leader goes on alone. A leader that dies looks the same at first.
TEST(a_leader_that_dies_while_some_rank_goes_on_alone) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    DeadlyStore deadly(store, rank == 0 ? "set host/0" : "");
    Tampered view(deadly, rank == 1);
    CommunicatorConfig config = test_config(rank, 2);
    config.timeout = kLong;
    const Error error = error_of([&] { Communicator::create(view, config); });
    CHECK(error.code() == ErrorCode::peer_dead);
    check_contains(error.what(), "rank 0 (pid ");
  });
  processes.check_ends(0);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
