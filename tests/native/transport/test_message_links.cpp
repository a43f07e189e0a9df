// The links themselves, moved on by hand: what is seen of a connection's end, in whichever order it comes.
#include "transport/messages/message_links.hpp"

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/host/machine.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

struct Reports final : MessageSink {
  void offered(int, const Envelope&, std::optional<std::span<const std::byte>>) override {}
  void sent(std::uint64_t) override {}
  void taken(int, std::uint64_t) override {}
  bool awaits(int) const override { return false; }
  void lost(int rank, ErrorCode code, const std::string&) override {
    CHECK_EQ(rank, 1);
    CHECK(code == ErrorCode::peer_dead);
    lost_it = true;
  }
  bool lost_it = false;
};

/// Rank 0 of two hosts, and what the test says as rank 1, which has a connection to rank 0's listener and
/// none of rank 0's.
struct Ends {
  Ends() {
    find_zmq_for_tests();
    group.name = "test";
    group.size = 2;
    const Deadline deadline = Deadline::in(kFar);
    const RankRecord record{0, machine_key(), "", getpid(), pid_namespace(), listener.name()};
    group.host = form_host_group(store, {record}, 0, {}, listener, deadline);
    failures.emplace(group);
    const LinkSettings settings{.address = "127.0.0.1"};
    const Map nowhere{{"endpoint", "tcp://127.0.0.1:1"},
                      {"key", ""},
                      {"token", ""},
                      {"host", ""},
                      {"security", name_of(settings.security)}};
    store.set("messages/1", encode_record(nowhere));
    const CommunicatorConfig config = test_config(0, 2);
    Meeting meeting(store, config, deadline);
    links = std::make_unique<MessageLinks>(group, *failures, meeting, settings);
    links->start([] {});
    const Value listener = msgpack::decode(store.get("messages", deadline)).at("listeners").as_array().at(0);
    peer = std::make_unique<ZmqSocket>(ZmqSocket::Kind::dealer);
    peer->connect(listener.at("endpoint").as_string(), listener.at("key").as_string());
    peer->send(control_message("hello", {{"rank", 1}, {"token", listener.at("token").as_string()}}));
  }
  ~Ends() { links->stop(); }

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

}  // namespace
}  // namespace vccl

TEST_MAIN
