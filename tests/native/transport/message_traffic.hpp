// Messages for the transport's tests: calls whose outcome can be waited for, and random traffic between all
// pairs of ranks, which is checked byte for byte.
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/native/transport/harness.hpp"
#include "transport/messages.hpp"

namespace vccl {

constexpr Milliseconds kFar{200'000};  // beyond what anything here may take

/// One call's end.
class Outcome {
 public:
  Messages::Done done() {
    return [state = state_](int source, const Error* error) {
      state->set_value({source, error ? std::optional<Error>(*error) : std::nullopt});
    };
  }
  bool is_there() { return future_.wait_for(Milliseconds(0)) == std::future_status::ready; }
  /// The source; throws what the call ended with.
  int get() {
    if (future_.wait_for(kFar) != std::future_status::ready) throw check::Failure("a message hangs");
    const auto [source, error] = future_.get();
    if (error) throw *error;
    return source;
  }

 private:
  std::shared_ptr<std::promise<std::pair<int, std::optional<Error>>>> state_ =
      std::make_shared<std::promise<std::pair<int, std::optional<Error>>>>();
  std::future<std::pair<int, std::optional<Error>>> future_ = state_->get_future();
};

inline Outcome send(Communicator& c, int to, MessageTag tag, std::span<const std::byte> bytes,
                    Milliseconds time = kFar) {
  Outcome outcome;
  c.messages().send(to, tag, {.collective = 9, .count = bytes.size()}, bytes, Deadline::in(time),
                    outcome.done());
  return outcome;
}

inline Outcome receive(Communicator& c, int from, MessageTag tag, std::span<std::byte> bytes,
                       Milliseconds time = kFar) {
  Outcome outcome;
  c.messages().receive(from, tag, {.collective = 9, .count = bytes.size()}, bytes, Deadline::in(time),
                       outcome.done());
  return outcome;
}

/// Every one of `size` ranks gets the same error from `body`, and for every later call. `join`: makes a
/// rank's communicator.
inline Error same_error(int size, const std::function<std::shared_ptr<Communicator>(Store&, int)>& join,
                        const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  return same_error_of(size, [&](int rank) {
    const auto c = join(store, rank);
    const Error error = error_of([&] { body(*c); });
    CHECK(c->failed());
    std::byte byte{};
    CHECK_EQ(std::string(error_of([&] { send(*c, 0, 1, {&byte, 1}).get(); }).what()), error.what());
    CHECK_EQ(std::string(error_of([&] { receive(*c, kAnySource, 1, {&byte, 1}).get(); }).what()),
             error.what());
    CHECK_EQ(std::string(error_of([&] { c->check(); }).what()), error.what());
    return error;
  });
}

/// Waits for something that never comes.
inline void wait_in_vain(Communicator& c, int from) {
  std::byte byte{};
  receive(c, from, 1234, {&byte, 1}).get();
}

/// Rank 1 offers a long message, and is killed. Rank 0, which has something to do with messages until it must
/// have heard of both, asks for it only then. `how`: in what it is told.
inline void take_from_a_dead_rank(const std::function<std::shared_ptr<Communicator>(Store&, int)>& join,
                                  bool any, const std::string& how) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    auto c = join(store, rank);
    std::vector<std::byte> large(30'000'000), small(2);
    if (rank == 1) {
      Outcome offered = send(*c, 0, 7, large);
      send(*c, 0, 1, small).get();
      wait_in_vain(*c, 0);
    }
    receive(*c, 1, 1, small).get();  // came behind the offer
    store.set("heard", "1");
    store.get("killed", Deadline::in(kFar));
    for (int i = 0; i < 40; ++i) {
      Outcome sent = send(*c, 0, 2, small);
      receive(*c, 0, 2, small).get();
      sent.get();
      usleep(10'000);
    }
    const Error error = error_of([&] { receive(*c, any ? kAnySource : 1, 7, large).get(); });
    CHECK(error.code() == ErrorCode::peer_dead);
    check_contains(error.what(), how);
    check_contains(error.what(),
                   "rank 0 waited for rank 1 to hand over test_9(30000000 elements) with tag 7");
  });
  store.get("heard", Deadline::in(kFar));
  processes.kill_and_wait(1);
  store.set("killed", "1");
  processes.check_ends(1);
}

/// What is said where rank 0 sent `sent` bytes with tag 6 and rank `to` wanted `wanted`.
inline std::string mismatch_text(int to, std::size_t sent, std::size_t wanted, bool from_any) {
  const auto text = [](std::size_t count) {
    return "test_9(" + std::to_string(count) + " elements) of " + std::to_string(count) + " bytes";
  };
  const std::string rank = "rank " + std::to_string(to);
  return "rank 0 sent " + text(sent) + " to " + rank + " with tag 6 in group test, but " + rank +
         " received " + text(wanted) + " from " + (from_any ? "any source" : "it") +
         ". Both sides of a message must name the same dtype and number of elements.";
}

/// Memory of a rank: on its card, or elsewhere.
class TestMemory {
 public:
  explicit TestMemory(TestRegion& region) : region_(region) {}
  std::span<std::byte> get(std::size_t bytes, bool on_card) {
    if (!on_card) return others_.emplace_back(bytes);
    const std::size_t offset = used_;
    used_ += bytes + 1;  // so that most of it is not aligned
    CHECK(used_ <= region_.region().size);
    return region_.span(offset, bytes);
  }

 private:
  TestRegion& region_;
  std::size_t used_ = 0;
  std::deque<std::vector<std::byte>> others_;
};

inline std::byte content(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>(seed + i * 7 + (i >> 8) + (i >> 17));
}
inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = content(seed, i);
}
inline void check_content(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == content(seed, i)) continue;
    throw check::Failure("byte " + std::to_string(i) + " of " + std::to_string(bytes.size()) + " is wrong");
  }
}

/// Two ranks send each other a message of a card and one of the CPU with the same tag, and receive them in
/// the other order. Each receive gets the message of its own kind, whatever their lengths.
inline void exchange_by_kind(Communicator& c) {
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{100'000}}) {
    std::vector<std::byte> of_card(bytes), of_cpu(bytes), from_card(bytes), from_cpu(bytes);
    fill(of_card, 1);
    fill(of_cpu, 2);
    Outcome first = send(c, 1 - c.rank(), {5, true}, of_card), second = send(c, 1 - c.rank(), 5, of_cpu);
    receive(c, 1 - c.rank(), 5, from_cpu).get();
    receive(c, kAnySource, {5, true}, from_card).get();
    check_content(from_cpu, 2);
    check_content(from_card, 1);
    first.get();
    second.get();
  }
}

struct TestMessage {
  int from, to, tag;
  std::size_t bytes;
  bool sent_from_card, received_on_card;
  std::uint64_t seed;
};

constexpr int kAnyTag = 100;  // messages with these tags, of one size each, are received from any source
constexpr std::size_t kAnyBytes[] = {0, 1, 4096, 4097, 300'000};

/// The same for every rank.
inline std::vector<TestMessage> plan_traffic(int size, int messages, std::uint64_t seed, bool large) {
  constexpr std::size_t kBytes[] = {0,    1,       63,      64,      65,      4095,     4096,
                                    4097, 131'071, 131'072, 131'073, 524'289, 1'048'577};
  std::mt19937_64 random(seed);
  std::vector<TestMessage> plan;
  for (int i = 0; i < messages; ++i) {
    TestMessage message{static_cast<int>(random() % size),
                        static_cast<int>(random() % size),
                        static_cast<int>(random() % 4),
                        kBytes[random() % std::size(kBytes)],
                        random() % 2 == 0,
                        random() % 2 == 0,
                        random()};
    if (random() % 4 == 0) {
      const auto kind = random() % std::size(kAnyBytes);
      message.tag = kAnyTag + static_cast<int>(kind);
      message.bytes = kAnyBytes[kind];
    }
    if (large && i % 40 == 0 && message.tag < kAnyTag) message.bytes = 5'000'003;
    plan.push_back(message);
  }
  return plan;
}

/// Sends and receives this rank's part of the plan, calls in random order (but in the plan's order where that
/// decides which message a receive gets), all of them under way at once.
inline void run_traffic(Communicator& c, TestRegion& region, const std::vector<TestMessage>& plan,
                        std::uint64_t seed) {
  struct Received {
    Outcome outcome;
    std::span<std::byte> memory;
    const TestMessage* message;
  };
  TestMemory memory(region);
  std::mt19937_64 random(seed * 31 + static_cast<std::uint64_t>(c.rank()));
  // Calls whose order among each other is fixed: sends, and receives with one source and tag.
  std::map<std::pair<int, int>, std::deque<const TestMessage*>> queues;
  std::map<std::pair<int, int>, std::deque<const TestMessage*>> expected;  // any source: by source and tag
  for (const TestMessage& message : plan) {
    if (message.from == c.rank()) queues[{-2, 0}].push_back(&message);
    if (message.to != c.rank()) continue;
    const bool any = message.tag >= kAnyTag;
    queues[{any ? kAnySource : message.from, message.tag}].push_back(&message);
    if (any) expected[{message.from, message.tag}].push_back(&message);
  }
  std::vector<Outcome> sends;
  std::vector<Received> receives;
  while (!queues.empty()) {
    auto queue = std::next(queues.begin(), static_cast<long>(random() % queues.size()));
    const auto [from, tag] = queue->first;
    const TestMessage& message = *queue->second.front();
    queue->second.pop_front();
    if (queue->second.empty()) queues.erase(queue);
    if (from == -2) {
      const auto bytes = memory.get(message.bytes, message.sent_from_card);
      fill(bytes, message.seed);
      sends.push_back(send(c, message.to, message.tag, bytes));
    } else {
      const auto bytes = memory.get(message.bytes, message.received_on_card);
      receives.push_back({receive(c, from, tag, bytes), bytes, &message});
    }
    if (random() % 16 == 0) usleep(random() % 300);
  }
  for (Received& received : receives) {
    const int source = received.outcome.get();
    const TestMessage* message = received.message;
    if (message->tag >= kAnyTag) {
      auto& queue = expected.at({source, message->tag});
      CHECK(!queue.empty());
      message = queue.front();
      queue.pop_front();
    }
    CHECK_EQ(source, message->from);
    check_content(received.memory, message->seed);
  }
  for (Outcome& sent : sends) CHECK_EQ(sent.get(), c.rank());
  // Whoever has everything must not leave before the others have: one that waits for any source counts
  // sources.
  std::byte token{};
  std::vector<Outcome> tokens;
  for (int peer = 0; peer < c.size(); ++peer) tokens.push_back(receive(c, peer, -7, {&token, 0}));
  for (int peer = 0; peer < c.size(); ++peer) send(c, peer, -7, {&token, 0}).get();
  for (Outcome& outcome : tokens) outcome.get();
}

inline std::unique_ptr<Communicator> join_with(Store& store, int rank, int size, const TestRegion& region) {
  CommunicatorConfig config = test_config(rank, size);
  config.regions = {region.region()};
  return Communicator::create(store, config);
}

}  // namespace vccl
