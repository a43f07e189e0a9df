// Whether a send meets a receive that has begun: then its sender needs no copy.
#include <functional>
#include <memory>
#include <string>

#include "tests/native/transport/message_traffic.hpp"

namespace vccl {
namespace {

const MessageTag kAlone(MessageTag::kNoneAlone, true), kInBatch(MessageTag::kNoneInBatch, true);

// Rank 1 begins receives and says so in the store. Rank 0 sends what they wait for.
void play(int receives, const std::function<void(Messages&)>& look) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::vector<std::byte> bytes(100);
    if (rank == 1) {
      std::vector<Outcome> received;
      std::vector<std::vector<std::byte>> into(static_cast<std::size_t>(receives), bytes);
      for (auto& each : into) received.push_back(receive(*c, 0, kAlone, each));
      store.set("begun", "1");
      for (auto& each : received) each.get();
      return;
    }
    store.get("begun", Deadline::in(kFar));
    look(c->messages());
    for (int i = 0; i < receives; ++i) send(*c, 1, kAlone, bytes).get();
  });
}

TEST(each_send_meets_the_receive_of_its_number) {
  play(2, [](Messages& messages) {
    CHECK(messages.meets_receive(1, kAlone));
    CHECK(messages.meets_receive(1, kAlone));
    CHECK(!messages.meets_receive(1, kAlone));
  });
}

TEST(sends_of_a_batch_and_others_never_meet) {
  play(1, [](Messages& messages) {
    CHECK(!messages.meets_receive(1, kInBatch));
    CHECK(messages.meets_receive(1, kAlone));
  });
}

TEST(a_send_that_nobody_receives_yet_meets_none) {
  play(0, [](Messages& messages) { CHECK(!messages.meets_receive(1, kAlone)); });
}

TEST(numbers_of_programs_are_not_counted) {
  play(1, [](Messages& messages) {
    CHECK(!messages.meets_receive(1, MessageTag(5, true)));
    CHECK(messages.meets_receive(1, kAlone));
  });
}

// A receive counts once a message lies there for it, too, and stays counted when it has ended.
TEST(receives_count_from_the_beginning) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::vector<std::byte> bytes(100);
    if (rank == 1) {
      store.get("sent", Deadline::in(kFar));
      receive(*c, 0, kAlone, bytes).get();
      auto next = receive(*c, 0, kAlone, bytes);
      store.set("begun", "1");
      next.get();
      return;
    }
    CHECK(!c->messages().meets_receive(1, kAlone));
    auto sent = send(*c, 1, kAlone, bytes);
    store.set("sent", "1");
    sent.get();
    store.get("begun", Deadline::in(kFar));
    CHECK(c->messages().meets_receive(1, kAlone));
    send(*c, 1, kAlone, bytes).get();
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
