// A ring link whose neighbour is played by the test: what it says wrong is an error that names everything,
// and a block that comes before the announcement of its operation waits for that.
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/links/remote_links.hpp"

#include <poll.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "base/text.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/connections/control_messages.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

const Milliseconds kLong{30'000};

/// Rank 0 of two hosts. The test plays rank 1, its left neighbour.
struct Rank0 {
  Rank0() : operation(group, Deadline::in(kLong)) {
    find_zmq_for_tests();
    group.name = "test";
    group.size = 2;
    group.describe = describe_test;
    const RankRecord record{0, machine_key(), "", getpid(), pid_namespace(), listener.name()};
    group.host = form_host_group(store, {}, {record}, 0, {}, listener, operation.deadline());
    failures.emplace(group);
    links.emplace(group, operation, *failures);
  }

  /// Runs `play` while rank 0 connects its links.
  void connect(const std::function<void()>& play) {
    Meeting meeting(store, test_config(0, 2), operation.deadline());
    std::thread rank([&] {
      try {
        settings.security = security;
        links->connect(meeting, 1, -1, settings);
      } catch (const Error& thrown) {
        error = thrown;
      }
    });
    published = msgpack::decode(store.get("link/0", operation.deadline()));
    neighbour.emplace();
    neighbour->connect(published.at("endpoint").as_string(), published.at("key").as_string());
    play();
    rank.join();
  }
  /// What rank 0 says, on a thread of its own or before.
  Value answer() {
    while (!operation.deadline().passed()) {
      if (const auto received = neighbour->receive()) return read_control(received->control, 0);
      usleep(100);
    }
    throw check::Failure("rank 0 does not answer");
  }
  std::string token() const { return published.at("token").as_string(); }
  /// What rank 1 says first, with further fields.
  std::string hello(Map fields = {}) const {
    fields.insert({{"rank", 1}, {"token", token()}, {"host", "b"}, {"session", Binary{session}}});
    return control_message("hello", std::move(fields));
  }

  MemoryStore store;
  Listener listener;
  Group group;
  CurrentOperation operation;
  std::optional<FailureChannel> failures;
  std::optional<RemoteLinks> links;
  LinkSecurity security = LinkSecurity::encrypt;
  LinkSettings settings{.address = "127.0.0.1", .host = "a"};
  std::optional<Error> error;
  Value published;
  std::optional<ZmqSocket> neighbour;
  const std::string session = random_bytes(16);
};

/// What rank 0 makes of `first`, the first message of rank 1.
Error error_after(const std::string& first) {
  Rank0 rank;
  rank.connect([&] { rank.neighbour->send(first); });
  CHECK(rank.error);
  CHECK_EQ(std::string(rank.failures->error().what()), rank.error->what());
  return *rank.error;
}

TEST(what_no_neighbour_says) {
  const auto refused = [](const std::string& first, const std::string& why) {
    const Error error = error_after(first);
    CHECK(error.code() == ErrorCode::protocol);
    CHECK_EQ(std::string(error.what()),
             "rank 1 sent rank 0 what no rank sends, in the meeting of group test: " + why);
  };
  refused("", "malformed control message: cut off in a number");
  refused(encode_record({}), "malformed control message: the key \"t\" is missing");
  refused(control_message("hello"), "malformed control message: the key \"token\" is missing");
  refused(control_message("hello", {{"token", "guessed"}}), "a wrong token");
  refused(control_message("begin"), "something before its greeting");
  refused(msgpack::encode(Map{{"v", 77}, {"t", "hello"}}),
          "rank 1 speaks version 77 to ranks that speak version " + std::to_string(kProtocolVersion) +
              ": all ranks must run the same version of vccl");
}

// A neighbour that fails after it has read this rank's greeting does not come to answer it.
TEST(last_words_may_take_the_place_of_the_greeting) {
  const int code = static_cast<int>(ErrorCode::system);
  const Error error = error_after(control_message("fail", {{"code", code}, {"text", "no memory is left"}}));
  CHECK(error.code() == ErrorCode::system);
  CHECK_EQ(std::string(error.what()), "no memory is left");
}

TEST(a_failure_that_the_neighbour_tells_is_passed_on_as_it_is) {
  MemoryStore store;
  find_zmq_for_tests();
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = rank ? "b" : "a";
    const auto c = Communicator::create(store, config);
    if (rank == 0) c->fail(ErrorCode::protocol, "one\xff's own text");
    const Error error = error_of([&] {
      Operation operation(*c, {}, {}, Deadline::in(kLong));
      operation.finish();
    });
    CHECK(error.code() == ErrorCode::protocol);
    CHECK_EQ(std::string(error.what()), "one\xef\xbf\xbd's own text");
  });
}

/// Rank 0 with a link and its stream, over which a long block comes before rank 1 says what it has begun.
struct EarlyBlock : Rank0 {
  static constexpr std::uint64_t kBytes = 100'000;

  explicit EarlyBlock(LinkSecurity of_link, Milliseconds time = kLong) : block(kBytes), slot(kBytes) {
    security = of_link;
    connect([&] {
      const std::string ours = random_bytes(Session::kContribution);
      neighbour->send(hello({{"secret", Binary{ours}}}));
      const std::string theirs = answer().at("secret").as_binary();
      const std::string purpose = base::text("blocks|test|1|0|", name_of(security), "|", token());
      stream.emplace(published.at("stream").as_string(),
                     FrameProtection::agree(security, ours, theirs, purpose));
    });
    CHECK(!error);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = pattern(1, 1, i);
    CHECK(operation.begin({.signature = {.collective = 1, .count = kBytes}}, Deadline::in(time)));
    links->begin();
    CHECK(stream->send(stream->prepare(1, block, slot.data())));
    RemoteLink& link = *links->to_left();
    while (link.streamed.empty()) {
      links->pump();
      CHECK(!failures->happened());
    }
    CHECK(!links->agrees(link));
  }
  /// Says the begin of rank 1, whose signature has this count.
  void begin(std::uint64_t count, std::uint32_t algorithm = 0) {
    Map fields = signature_fields({.collective = 1, .count = count});
    fields.insert({{"seq", 1}, {"algorithm", std::uint64_t{algorithm}}, {"order", 0}, {"heard", 0}});
    neighbour->send(control_message("begin", std::move(fields)));
  }
  std::vector<std::byte> block, slot;
  std::optional<BlockSender> stream;
};

constexpr LinkSecurity kSecurities[] = {LinkSecurity::encrypt, LinkSecurity::authenticate,
                                        LinkSecurity::none};

TEST(a_block_waits_for_the_comparison_of_signatures) {
  for (const LinkSecurity security : kSecurities) {
    EarlyBlock rank(security);
    rank.begin(EarlyBlock::kBytes);
    RemoteInbox inbox(*rank.links);
    const std::byte* bytes = inbox.take_committed(EarlyBlock::kBytes);
    CHECK(rank.links->agrees(*rank.links->to_left()));
    CHECK(std::equal(rank.block.begin(), rank.block.end(), bytes));
    inbox.release();
  }
}

TEST(a_block_of_another_operation_is_not_taken) {
  for (const LinkSecurity security : kSecurities) {
    EarlyBlock rank(security);
    rank.begin(EarlyBlock::kBytes + 1);
    RemoteInbox inbox(*rank.links);
    const Error error = error_of([&] { inbox.take_committed(EarlyBlock::kBytes); });
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(),
                   "rank 0 called test_1(100000 elements) as operation 1 of group test, but rank 1 "
                   "called test_1(100001 elements)");
  }
}

TEST(a_block_of_another_algorithm_is_not_taken) {
  EarlyBlock rank(LinkSecurity::encrypt);
  rank.begin(EarlyBlock::kBytes, 3);
  RemoteInbox inbox(*rank.links);
  const Error error = error_of([&] { inbox.take_committed(EarlyBlock::kBytes); });
  CHECK(error.code() == ErrorCode::mismatch);
}

TEST(a_block_whose_operation_is_never_announced_is_not_taken) {
  EarlyBlock rank(LinkSecurity::encrypt, Milliseconds(500));
  RemoteInbox inbox(*rank.links);
  const Error error = error_of([&] { inbox.take_committed(EarlyBlock::kBytes); });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(), "for rank 1 (tcp://127.0.0.1, host b) on another host to send a block of");
}

/// Rank 0 in an operation that it announces with its blocks, as rank 1 does with this short one.
struct AnnouncedBlock : Rank0 {
  explicit AnnouncedBlock(std::uint64_t their_count) {
    connect([&] { neighbour->send(hello()); });
    CHECK(!error);
    CHECK(operation.begin({.signature = {.collective = 1, .count = 5}}, Deadline::in(kLong)));
    links->begin_with_block();
    Map fields = signature_fields({.collective = 1, .count = their_count});
    fields.insert({{"seq", 1}, {"algorithm", 0}, {"order", 0}, {"n", 1}, {"heard", 0}});
    neighbour->send(control_message("block", std::move(fields)), block.data(), block.size());
  }
  const std::vector<std::byte> block{5, std::byte{7}};
};

TEST(a_block_may_bring_the_announcement_of_its_operation) {
  AnnouncedBlock rank(5);
  RemoteInbox inbox(*rank.links);
  const std::byte* bytes = inbox.take_committed(rank.block.size());
  CHECK(std::equal(rank.block.begin(), rank.block.end(), bytes));
  CHECK_EQ(rank.links->to_left()->compared, 1u);
  inbox.release();
}

TEST(a_block_that_brings_another_announcement_is_not_taken) {
  AnnouncedBlock rank(6);
  RemoteInbox inbox(*rank.links);
  const Error error = error_of([&] { inbox.take_committed(rank.block.size()); });
  CHECK(error.code() == ErrorCode::mismatch);
  check_contains(error.what(),
                 "rank 0 called test_1(5 elements) as operation 1 of group test, but rank 1 "
                 "called test_1(6 elements)");
}

/// Rank 0 with a link without a stream, which rank 1 makes again.
struct CutLink : Rank0 {
  explicit CutLink(Milliseconds silence = kLong, bool settled = true) {
    settings.silence = silence;
    connect([&] {
      neighbour->send(hello());
      answer();
    });
    CHECK(!error);
    if (settled) links->settle();
    begin_operation();
  }
  /// Begins an operation of rank 0, which says so.
  void begin_operation() {
    if (operation.under_way()) operation.end();
    CHECK(operation.begin({.signature = {.collective = 1}}, Deadline::in(kLong)));
    links->begin();
  }
  /// What comes to rank 1, which rank 0 may have to say yet.
  Value hear() {
    while (!operation.deadline().passed()) {
      links->pump();
      if (const auto received = neighbour->receive()) {
        const Value message = read_control(received->control, 0);
        if (message.at("t") != Value("ping")) return message;  // rank 0 asks when somebody has gone
      }
      usleep(100);
    }
    throw check::Failure("rank 0 says nothing");
  }
  void check_begin(std::uint64_t sequence) {
    const Value begin = hear();
    if (begin.has("text")) throw check::Failure(begin.at("text").as_string());
    CHECK_EQ(begin.at("t").as_string(), std::string("begin"));
    CHECK(begin.at("seq") == Value(sequence));
  }
  /// Connects with a new socket, and says that.
  void come_again(const Map& changed = {}, std::uint64_t heard = 0) {
    neighbour.emplace();
    neighbour->connect(published.at("endpoint").as_string(), published.at("key").as_string());
    Map fields{{"again", true}, {"heard", heard}, {"attempt", ++attempt}};
    for (const auto& [key, value] : changed) fields[key] = value;
    neighbour->send(hello(std::move(fields)));
  }
  void check_answer(std::uint64_t heard) {
    const Value answer = hear();
    CHECK(answer.at("t") == Value("hello"));
    CHECK(answer.at("attempt") == Value(attempt));
    CHECK(answer.at("heard") == Value(heard));
  }
  /// Pumps until the group has failed.
  Error failure() {
    while (!failures->happened() && !operation.deadline().passed()) links->pump();
    return failures->error();
  }

  std::uint64_t attempt = 0;
};

TEST(what_was_not_heard_is_said_again) {
  CutLink rank;
  rank.come_again();  // nothing of the first connection was read
  rank.check_answer(0);
  rank.check_begin(1);
  rank.begin_operation();
  rank.check_begin(2);
  rank.come_again({}, 1);  // the second announcement was lost
  rank.check_answer(0);
  rank.check_begin(2);
  rank.begin_operation();
  rank.come_again({}, 2);
  rank.check_answer(0);
  rank.check_begin(3);
}

TEST(what_was_heard_is_counted) {
  CutLink rank;
  Map fields = signature_fields({.collective = 1});
  fields.insert({{"seq", 1}, {"algorithm", 0}, {"order", 0}, {"heard", 1}});
  rank.neighbour->send(control_message("begin", std::move(fields)));
  while (rank.links->to_left()->compared != 1) rank.links->pump();
  rank.come_again({}, 1);
  rank.check_answer(1);
}

// What does not fit is dropped, before the end of the connection was noticed and after it, while the group is
// made and later.
TEST(a_connection_is_not_made_again_for_others) {
  for (const auto& [open, settled] : {std::pair(false, true), {true, true}, {false, false}, {true, false}}) {
    CutLink rank(kLong, settled);
    if (!open) {
      rank.neighbour->close(Milliseconds(0));
      while (rank.links->to_left()->in_touch()) rank.links->pump();
    }
    std::optional<ZmqSocket>& socket = rank.neighbour;
    std::vector<std::unique_ptr<ZmqSocket>> strangers;
    const auto refused = [&](const std::string& hello) {
      strangers.push_back(std::make_unique<ZmqSocket>());
      strangers.back()->connect(rank.published.at("endpoint").as_string(),
                                rank.published.at("key").as_string());
      strangers.back()->send(hello);
    };
    const Map good{{"rank", 1},  {"token", rank.token()},           {"host", "b"}, {"again", true},
                   {"heard", 0}, {"session", Binary{rank.session}}, {"attempt", 1}};
    const auto with = [&](const char* key, Value value) {
      Map fields = good;
      fields[key] = std::move(value);
      return control_message("hello", std::move(fields));
    };
    refused("");
    refused(encode_record({}));
    refused(control_message("hello"));
    refused(control_message("begin"));
    refused(with("token", "guessed"));
    refused(with("session", Binary{std::string(16, 'x')}));
    refused(with("session", Binary{}));
    refused(with("rank", 0));
    refused(with("attempt", 0));
    refused(with("attempt", -1));
    for (int i = 0; i < 200; ++i) {
      rank.links->pump();
      usleep(1000);
    }
    CHECK(!rank.failures->happened());
    CHECK_EQ(rank.links->to_left()->in_touch(), open);
    for (const auto& stranger : strangers) CHECK(!stranger->receive());
    if (open) rank.check_begin(1);
    strangers.clear();
    socket.reset();
    rank.come_again();
    rank.check_answer(0);
    rank.check_begin(1);
    // That hello once more.
    refused(with("attempt", rank.attempt));
    rank.begin_operation();
    rank.check_begin(2);
  }
}

// Rank 0 pings rank 1 until it answers. What arrives just before a ping makes the descriptor readable, and
// the ping makes it silent again.
TEST(a_ping_does_not_hide_what_has_arrived) {
  CutLink rank;
  RemoteLink& link = *rank.links->to_left();
  rank.neighbour->send(control_message("something"));
  pollfd item{link.socket->data_descriptor(), POLLIN, 0};
  CHECK(poll(&item, 1, static_cast<int>(kLong.count())) == 1);
  bool read = false;
  auto handle = [&](ZmqSocket::Received&) { read = true; };
  for (int i = 0; i < 100 && !read; ++i) {
    link.ready = {false, false, false, false};
    link.receive_ready(handle);
    usleep(2'000);
  }
  CHECK(read);
}

// Rank 1 may not have got the answer, or have got it and not made the stream.
TEST(the_secret_is_told_until_the_stream_was_made_with_it) {
  Rank0 rank;
  const std::string ours = random_bytes(Session::kContribution);
  const auto dial = [&](int attempt) {
    rank.neighbour.emplace();
    rank.neighbour->connect(rank.published.at("endpoint").as_string(), rank.published.at("key").as_string());
    Map fields{{"secret", Binary{ours}}};
    if (attempt > 0) fields.insert({{"again", true}, {"attempt", attempt}, {"heard", 0}});
    rank.neighbour->send(rank.hello(std::move(fields)));
  };
  std::optional<BlockSender> stream;
  rank.connect([&] {
    dial(0);
    const std::string theirs = rank.answer().at("secret").as_binary();
    for (int attempt = 1; attempt < 4; ++attempt) {
      dial(attempt);
      const Value answer = rank.answer();
      CHECK(answer.at("attempt") == Value(attempt));
      CHECK(answer.at("frame") == Value(0));
      CHECK(answer.at("secret").as_binary() == theirs);
    }
    const std::string purpose = base::text("blocks|test|1|0|encrypt|", rank.token());
    stream.emplace(rank.published.at("stream").as_string(),
                   FrameProtection::agree(LinkSecurity::encrypt, ours, theirs, purpose), kLong, true, 3);
  });
  CHECK(!rank.error);  // the stream has come
  dial(4);
  std::optional<ZmqSocket::Received> received;
  while (!received && !rank.operation.deadline().passed()) {
    rank.links->pump();
    received = rank.neighbour->receive();
  }
  CHECK(received);
  const Value answer = read_control(received->control, 0);
  CHECK(answer.at("attempt") == Value(4));
  CHECK(!answer.has("secret"));
}

TEST(a_rank_that_does_not_come_again_is_dead) {
  CutLink rank(Milliseconds(2'000));
  rank.neighbour->close(Milliseconds(0));
  const auto start = Clock::now();
  const Error error = rank.failure();
  CHECK(error.code() == ErrorCode::peer_dead);
  check_contains(error.what(),
                 "the connection of rank 0 to rank 1 (tcp://127.0.0.1, host b) ended, and could not be "
                 "made again within 500 ms, while it waited");
  CHECK(Clock::now() - start < std::chrono::seconds(20));
}

TEST(a_failure_is_told_on_a_connection_that_is_made_again) {
  CutLink rank;
  rank.neighbour->close(Milliseconds(0));
  while (rank.links->to_left()->in_touch()) rank.links->pump();
  rank.failures->fail(ErrorCode::aborted, "enough");
  rank.links->spread_failure();
  rank.come_again();
  rank.check_answer(0);
  rank.check_begin(1);
  const Value last = rank.hear();
  CHECK(last.at("t") == Value("fail"));
  CHECK(last.at("text") == Value("enough"));
}

TEST(wrong_confirmations) {
  const auto refused = [](CutLink& rank, const std::string& what) {
    const Error error = rank.failure();
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), "rank 1 sent rank 0 what no rank sends, in test_1(0 elements)");
    check_contains(error.what(), what);
  };
  {
    CutLink rank;
    rank.come_again({}, 2);
    refused(rank, "the confirmation of 2 messages, of 1 that it was sent and 0");
  }
  for (const int lie : {0, 2}) {
    CutLink rank;
    rank.come_again({}, 1);
    rank.check_answer(0);
    Map fields = signature_fields({.collective = 1});
    fields.insert({{"seq", 1}, {"algorithm", 0}, {"order", 0}, {"heard", lie}});
    rank.neighbour->send(control_message("begin", std::move(fields)));
    refused(rank, "the confirmation of " + std::to_string(lie) + " messages, of 1 that it was sent and 1");
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
