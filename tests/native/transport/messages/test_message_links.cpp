// The links themselves, moved on by hand: what is seen of a connection's end, in whichever order it comes.
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/messages/message_links.hpp"

#include "tests/native/transport/cuts.hpp"
#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

struct Reports final : MessageSink {
  void offered(int, const Envelope& envelope, std::optional<std::span<const std::byte>>) override {
    last_offer = envelope.id;
  }
  void sent(std::uint64_t) override {}
  void taken(int, std::uint64_t) override { when_taken(); }
  bool awaits(int) const override { return false; }
  void lost(int rank, ErrorCode code, const std::string&) override {
    CHECK_EQ(rank, 1);
    CHECK(code == ErrorCode::peer_dead);
    lost_it = true;
  }
  std::uint64_t last_offer = 0;
  std::function<void()> when_taken;
  bool lost_it = false;
};

/// Rank 0 of two hosts, and what the test says as rank 1, which has a connection to rank 0's listener, and
/// one of rank 0's only if rank 1 listens.
struct Ends {
  explicit Ends(const Map& first_hello = {}, bool rank_1_listens = false) {
    find_zmq_for_tests();
    group.name = "test";
    group.size = 2;
    const Deadline deadline = Deadline::in(kFar);
    const RankRecord record{0, machine_key(), "", getpid(), pid_namespace(), listener.name()};
    group.host = form_host_group(store, {}, {record}, 0, {}, listener, deadline);
    failures.emplace(group);
    const LinkSettings settings{.address = "127.0.0.1", .silence = Milliseconds(8'000)};
    const Map nowhere{{"endpoint", "tcp://127.0.0.1:1"},
                      {"key", ""},
                      {"token", ""},
                      {"host", ""},
                      {"security", name_of(settings.security)}};
    if (rank_1_listens) {
      router = std::make_unique<ZmqSocket>(ZmqSocket::Kind::router);
      const auto record_1 = ListenerRecord::listen(*router, settings, 1, group.log);
      store.set("messages/1", record_1.encode({{"security", name_of(settings.security)}}));
    } else {
      store.set("messages/1", encode_record(nowhere));
    }
    const CommunicatorConfig config = test_config(0, 2);
    Meeting meeting(store, config, deadline);
    links = std::make_unique<MessageLinks>(group, *failures, meeting, settings);
    links->start([] {});
    listens = msgpack::decode(store.get("messages", deadline)).at("listeners").as_array().at(0);
    if (rank_1_listens) {
      links->watch(1);  // rank 0 connects first
      progress_until([&] { return router->receive().has_value(); });
    }
    peer = connect(first_hello.empty() ? Map{{"session", Binary{session}}} : first_hello);
  }
  ~Ends() { links->stop(); }
  /// Connects to rank 0, and says hello with these fields.
  std::unique_ptr<ZmqSocket> connect(const Map& more) {
    Map hello{{"rank", 1}, {"token", listens.at("token").as_string()}};
    for (const auto& [key, value] : more) hello[key] = value;
    auto socket = std::make_unique<ZmqSocket>(ZmqSocket::Kind::dealer);
    socket->connect(listens.at("endpoint").as_string(), listens.at("key").as_string());
    socket->send(control_message("hello", std::move(hello)));
    return socket;
  }
  std::unique_ptr<ZmqSocket> connect_again(std::uint64_t attempt, std::uint64_t heard) {
    return connect({{"again", true}, {"session", Binary{session}}, {"attempt", attempt}, {"heard", heard}});
  }
  /// What rank 0 says next beside pings.
  Value hear() {
    Value message;
    progress_until([&] {
      const auto received = peer->receive();
      if (received) message = read_control(received->control, 0);
      return received && message.at("t") != Value("ping");
    });
    return message;
  }
  void check_answer(std::uint64_t attempt, std::uint64_t heard) {
    const Value answer = hear();
    CHECK(answer.at("t") == Value("hello"));
    CHECK(answer.at("attempt") == Value(attempt));
    CHECK(answer.at("heard") == Value(heard));
  }

  void progress_until(const std::function<bool()>& reached) {
    const Deadline deadline = Deadline::in(kFar);
    while (!reached()) {
      CHECK(!deadline.passed());
      if (!links->progress(reports)) usleep(500);
    }
  }
  bool asks() {
    const auto received = peer->receive();
    return received && read_control(received->control, 0).at("t") == Value("ping");
  }

  MemoryStore store;
  Listener listener;
  Group group;
  std::optional<FailureChannel> failures;
  std::unique_ptr<MessageLinks> links;
  Value listens;
  const std::string session = std::string(16, 's');
  std::unique_ptr<ZmqSocket> router;  // of rank 1, if it listens
  std::unique_ptr<ZmqSocket> peer;
  Reports reports;
};

TEST(an_answer_is_no_news_of_what_happened_after_the_question) {
  Ends ends;
  int asked = 0;
  ends.progress_until([&] { return asked += ends.asks(), asked == 3; });
  while (ends.asks()) ++asked;
  // Rank 0 finds the answers and the end of the connection at the same time.
  for (int i = 0; i < asked; ++i) ends.peer->send(control_message("pong"));
  ends.peer->close(Milliseconds(5'000));
  usleep(200'000);
  ends.progress_until([&] { return ends.reports.lost_it; });
}

/// An offer of rank 0 to rank 1.
void send_short(Ends& ends, std::uint64_t id) {
  const Envelope envelope{.tag = 3, .signature = {.collective = 9, .count = 1}, .bytes = 1, .id = id};
  const std::byte byte{};
  ends.links->send(1, envelope, {&byte, 1});
}

TEST(what_was_not_heard_is_said_again) {
  Ends ends;
  ends.progress_until([&] { return ends.asks(); });  // rank 0 knows whose connection it is
  send_short(ends, 1);
  CHECK(ends.hear().at("id") == Value(1));
  send_short(ends, 2);
  ends.peer = ends.connect_again(1, 1);
  ends.check_answer(1, 0);
  CHECK(ends.hear().at("id") == Value(2));
  ends.peer->send(control_message("got", {{"short", 2}, {"offers", 2}, {"blocks", 0}, {"heard", 2}}));
  usleep(50'000);
  ends.progress_until([] { return true; });
  ends.peer = ends.connect_again(2, 2);
  ends.check_answer(2, 1);
  send_short(ends, 3);
  CHECK(ends.hear().at("id") == Value(3));
  CHECK(!ends.reports.lost_it);
}

TEST(the_first_hello_may_be_lost) {
  const Binary session{std::string(16, 's')};
  Ends ends(Map{{"again", true}, {"session", session}, {"attempt", 1}, {"heard", 0}});
  ends.check_answer(1, 0);
  send_short(ends, 1);
  CHECK(ends.hear().at("id") == Value(1));
  ends.peer = ends.connect_again(2, 1);
  ends.check_answer(2, 0);
  CHECK(!ends.reports.lost_it);
}

// Rank 1 would send on its own connection, and nothing that it says could come any more.
TEST(a_peer_that_does_not_connect_again_is_lost_although_this_rank_is_connected) {
  Ends ends({}, true);
  ends.progress_until([&] { return ends.asks(); });
  ends.peer->close(Milliseconds(0));
  ends.progress_until([&] { return ends.reports.lost_it; });
}

// In one call, rank 0 reads as much as it may from the peer's connection, and then finds on its own both the
// answer to its attempt and the end of that connection.
TEST(an_answer_and_the_next_cut_may_come_together) {
  constexpr std::size_t kBlock = Communicator::kBlockBytes, kBlocks = MessagePort::kCopyAtOnce / kBlock;
  std::vector<std::byte> sent(kBlock), memory(kBlocks * kBlock);
  Ends ends({}, true);
  const auto cut = [] {
    for (const Connection& connection : tcp_connections()) reset_connection(connection);
  };
  std::string route;
  std::uint64_t attempt = 0;
  // Reads what rank 0 says on its own connection, of which the last attempt counts.
  const auto hear_attempts = [&] {
    while (const auto received = ends.router->receive()) {
      const Value message = read_control(received->control, 0);
      if (message.at("t") != Value("hello")) continue;
      attempt = message.at("attempt").as_uint();
      route = received->route;
    }
    return attempt;
  };
  cut();
  ends.progress_until([&] { return hear_attempts() > 0; });
  ends.peer = ends.connect_again(1, 0);
  ends.check_answer(1, 0);
  Map offer = signature_fields({.collective = 9, .count = memory.size()});
  offer.insert({{"id", 1}, {"tag", 3}, {"bytes", memory.size()}});
  ends.peer->send(control_message("offer", std::move(offer)));
  ends.progress_until([&] { return ends.reports.last_offer == 1; });
  ends.links->take(1, 1, memory);
  std::uint64_t answered = 0;
  ends.reports.when_taken = [&] {
    answered = hear_attempts();
    ends.router->post(route,
                      control_message("hello", {{"again", true}, {"attempt", answered}, {"heard", 0}}));
    usleep(100'000);
    cut();
    usleep(100'000);
  };
  for (std::size_t at = 0; at < memory.size(); at += kBlock)
    ends.peer->send(control_message("block", {{"id", 1}, {"at", at}}), sent.data(), kBlock);
  usleep(100'000);  // all have arrived
  ends.progress_until([&] { return answered > 0 && hear_attempts() > answered; });
}

TEST(a_connection_is_not_made_again_for_others) {
  Ends ends;
  ends.progress_until([&] { return ends.asks(); });
  ends.peer = ends.connect_again(5, 0);
  ends.check_answer(5, 0);
  std::vector<std::unique_ptr<ZmqSocket>> strangers;
  strangers.push_back(ends.connect_again(5, 0));
  strangers.push_back(ends.connect_again(4, 0));
  strangers.push_back(ends.connect({{"again", true}}));
  strangers.push_back(ends.connect(
      {{"again", true}, {"session", Binary{std::string(16, 'x')}}, {"attempt", 9}, {"heard", 0}}));
  strangers.push_back(
      ends.connect({{"again", true}, {"session", Binary{ends.session}}, {"attempt", -1}, {"heard", 0}}));
  const Deadline enough = Deadline::in(Milliseconds(300));
  ends.progress_until([&] { return enough.passed(); });
  for (const auto& stranger : strangers) CHECK(!stranger->receive());
  send_short(ends, 1);
  CHECK(ends.hear().at("id") == Value(1));
}

// The peer may have said something on its connection, where it waits, and then answered on the connection of
// rank 0.
TEST(a_confirmation_may_come_late) {
  Ends ends;
  ends.progress_until([&] { return ends.asks(); });
  for (const std::uint64_t id : {1, 2, 3}) {
    send_short(ends, id);
    CHECK(ends.hear().at("id") == Value(id));
  }
  for (const std::uint64_t heard : {3, 2, 0})
    ends.peer->send(control_message("got", {{"short", 3}, {"offers", 3}, {"blocks", 0}, {"heard", heard}}));
  std::uint64_t next = 4;
  Value heard;
  while (heard != Value(3)) {  // these three
    send_short(ends, next++);
    heard = ends.hear().at("heard");
  }
  // A hello is never late: rank 0 has forgotten what this one asks for.
  ends.peer = ends.connect_again(1, 2);
  const Error error = error_of([&] { ends.hear(); });
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(), "rank 1 sent the confirmation of 2 messages, of ");
}

TEST(a_wrong_confirmation_is_a_breach) {
  Ends ends;
  ends.progress_until([&] { return ends.asks(); });
  ends.peer = ends.connect_again(1, 1);
  const Error error = error_of([&] { ends.hear(); });
  CHECK(error.code() == ErrorCode::protocol);
  check_contains(error.what(), "rank 1 sent the confirmation of 1 messages, of 0");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
