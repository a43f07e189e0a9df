// What the engine does when the transport of messages throws what is no Error: memory may run out anywhere.
#include "transport/messages/message_engine.hpp"

#include <new>

#include "tests/native/transport/message_traffic.hpp"
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

/// The way to rank 1, on another host, where memory runs out in `place`.
class Port final : public MessagePort {
 public:
  explicit Port(std::string place) : place_(std::move(place)) {}

  void start(std::function<void()>) override {}
  void send(int, const Envelope&, std::span<const std::byte>) override { reach("send"); }
  void take(int, std::uint64_t, std::span<std::byte>) override {}
  void matched(int, std::size_t) override {}
  void watch(int) override { watched_ = true; }
  bool progress(MessageSink&) override {
    if (watched_) reach("progress");
    return false;
  }
  void stop() noexcept override {}

 private:
  void reach(const std::string& place) {
    if (place == place_) throw std::bad_alloc();
  }

  const std::string place_;
  bool watched_ = false;
};

TEST(memory_that_runs_out_fails_the_group) {
  for (const std::string place : {"send", "progress"}) {
    MemoryStore store;
    Listener listener;
    Group group;
    group.name = "test";
    group.size = 2;
    const RankRecord record{0, machine_key(), "", getpid(), pid_namespace(), listener.name()};
    group.host = form_host_group(store, {}, {record}, 0, {}, listener, Deadline::in(kFar));
    FailureChannel failures(group);
    AddedRegions added;
    Port port(place);
    MessageEngine engine(group, failures, added, &port);
    std::byte byte{};
    Outcome sent, received;
    engine.receive(1, 3, {.collective = 9, .count = 1}, {&byte, 1}, Deadline::in(kFar), received.done());
    engine.send(1, 3, {.collective = 9, .count = 1}, {&byte, 1}, Deadline::in(kFar), sent.done());
    for (Outcome* outcome : {&sent, &received}) {
      const Error error = error_of([&] { outcome->get(); });
      CHECK(error.code() == ErrorCode::system);
      check_contains(error.what(), "rank 0 could not go on with its messages in group test: std::bad_alloc");
    }
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
