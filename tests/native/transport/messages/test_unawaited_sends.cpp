// Sends that nobody waits for: their memory is a copy, and the program has gone on.
#include <unistd.h>

#include <atomic>
#include <memory>

#include "tests/native/transport/message_traffic.hpp"

namespace vccl {
namespace {

constexpr std::size_t kLong = 1'000'000;  // bytes: waits for its receive

class Waiter : public Messages::Waiter {
 public:
  explicit Waiter(bool waits) : waits_(waits) {}
  bool waits() const noexcept override { return waits_; }
  void receiver_is_gone() override { ++gone; }

  std::atomic<int> gone{0};

 private:
  const bool waits_;
};

std::shared_ptr<Waiter> waiter(bool waits) {
  return std::make_shared<Waiter>(waits);
}

Outcome send_to(Communicator& c, int to, std::span<const std::byte> bytes, Milliseconds time,
                std::shared_ptr<Waiter> waiter) {
  Outcome outcome;
  c.messages().send(to, 1, {.collective = 9, .count = bytes.size()}, bytes, Deadline::in(time),
                    outcome.done(), std::move(waiter));
  return outcome;
}

TEST(it_has_no_deadline) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    std::vector<std::byte> bytes(kLong);
    if (rank == 0) {
      fill(bytes, 1);
      Outcome sent = send_to(*c, 1, bytes, Milliseconds(30), waiter(false));
      usleep(150'000);
      CHECK(!c->failed());
      store.set("late", "1");
      sent.get();
      return;
    }
    store.get("late", Deadline::in(kFar));
    receive(*c, 0, 1, bytes).get();
    check_content(bytes, 1);
  });
}

TEST(it_has_one_for_as_long_as_somebody_waits) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    if (rank == 0) {
      std::vector<std::byte> bytes(kLong);
      Outcome sent = send_to(*c, 1, bytes, Milliseconds(30), waiter(true));
      CHECK(error_of([&] { sent.get(); }).code() == ErrorCode::timeout);
      store.set("late", "1");
    }
    store.get("late", Deadline::in(kFar));
  });
}

TEST(its_receiver_may_leave_without_it) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 3));
    std::vector<std::byte> bytes(kLong);
    if (rank == 1) {
      store.get("sent", Deadline::in(kFar));
      c.reset();
      store.set("left", "1");
      return;
    }
    Outcome sent;
    const auto nobody = waiter(false);
    if (rank == 0) {
      sent = send_to(*c, 1, bytes, kFar, nobody);
      store.set("sent", "1");
    }
    store.get("left", Deadline::in(kFar));
    if (rank == 0) {
      // It is told once that the receiver is gone.
      const auto end = Deadline::in(kFar);
      while (nobody->gone == 0 && !end.passed()) usleep(1'000);
      send(*c, 2, 1, bytes).get();
      CHECK(!sent.is_there());
      CHECK_EQ(nobody->gone.load(), 1);
    } else {
      receive(*c, 0, 1, bytes).get();
    }
    CHECK(!c->failed());
  });
}

TEST(it_ends_with_its_communicator) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = Communicator::create(store, test_config(rank, 2));
    if (rank == 0) {
      std::vector<std::byte> bytes(kLong);
      Outcome sent = send_to(*c, 1, bytes, kFar, waiter(false));
      CHECK(!sent.is_there());
      c.reset();
      CHECK(error_of([&] { sent.get(); }).code() == ErrorCode::aborted);
      store.set("left", "1");
    }
    store.get("left", Deadline::in(kFar));
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
