// Which threads wait, and whether queues stand still while they do.
#include "csrc_device/runtime/host_waits.hpp"

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

std::vector<pthread_t> blocked_threads() {
  std::vector<pthread_t> threads;
  for (const auto& waiting : waiting_threads()) threads.push_back(waiting.thread);
  return threads;
}

/// Gives the stream a task that waits behind the gate. Returns the thread that is at it.
pthread_t occupy(Stream& stream, Gate& gate) {
  auto runner = std::make_shared<std::promise<pthread_t>>();
  auto known = runner->get_future();
  stream.enqueue([runner, &gate] {
    runner->set_value(pthread_self());
    gate.pass();
  });
  return known.get();
}

}  // namespace

TEST(nobody_waits) {
  CHECK(waiting_threads().empty());
  CHECK(queues_stand_still({}));
}

TEST(a_thread_waits_for_a_task) {
  Gate gate;
  Stream stream(-1, 0, 0, "busy");
  const pthread_t runner = occupy(stream, gate);
  CHECK(!queues_stand_still({}));
  CHECK(queues_stand_still({runner}));

  std::thread waiter([&] { stream.synchronize(); });
  CHECK(eventually([] { return !waiting_threads().empty(); }));
  const auto first = waiting_threads();
  CHECK(first.size() == 1 && pthread_equal(first[0].thread, waiter.native_handle()));
  // Waiting for the queue does not keep it from going on.
  CHECK(!queues_stand_still(blocked_threads()));
  gate.open();
  waiter.join();
  CHECK(waiting_threads().empty());
  CHECK(queues_stand_still({}));
}

TEST(a_wait_that_is_over_has_another_number) {
  std::uint64_t numbers[2];
  for (auto& number : numbers) {
    HostWait wait;
    number = waiting_threads().at(0).wait;
    CHECK_EQ(number, waiting_threads().at(0).wait);
  }
  CHECK(numbers[0] != numbers[1]);
}

TEST(a_queue_behind_a_blocked_one) {
  Gate gate;
  Stream first(-1, 0, 0, "first"), second(-1, 1, 0, "second");
  const pthread_t runner = occupy(first, gate);
  second.wait(first.record());
  second.enqueue([] {});
  CHECK(eventually([] { return !waiting_threads().empty(); }));  // the worker of `second`
  auto blocked = blocked_threads();
  CHECK(!queues_stand_still(blocked));
  blocked.push_back(runner);
  CHECK(queues_stand_still(blocked));
  gate.open();
}

TEST(what_others_complete_may_come_at_any_time) {
  Promise promise("message");
  CHECK(!queues_stand_still({pthread_self()}));
  promise.fulfil(nullptr);
  CHECK(queues_stand_still({}));
}

TEST_MAIN
