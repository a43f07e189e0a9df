// Events: reaching, timing, bounded waits.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::Event;
using vdev::Stream;

namespace {
std::shared_ptr<Stream> make() {
  return std::make_shared<Stream>(-1, 7, 0, "test");
}
constexpr std::int64_t kMinute = 60'000'000'000;
}  // namespace

TEST(a_default_event_counts_as_reached) {
  const Event event;
  CHECK(!event.recorded());
  CHECK(event.reached());
  event.wait();
  CHECK(event.wait_for(0));
  CHECK(!event.failure());
  CHECK_EQ(event.time_ns(), std::int64_t{0});
  auto stream = make();
  stream->wait(event);
  CHECK(stream->idle());
}

TEST(an_idle_stream_reaches_its_point_at_once) {
  auto stream = make();
  const auto before = base::monotonic_ns();
  const Event event = stream->record();
  CHECK(event.recorded());
  CHECK(event.reached());
  CHECK(event.time_ns() >= before);
  CHECK(event.time_ns() <= base::monotonic_ns());
}

TEST(a_point_is_reached_after_the_tasks_before_it_and_not_those_behind) {
  auto stream = make();
  Gate first, second;
  stream->enqueue([&] { first.pass(); });
  const Event event = stream->record();
  stream->enqueue([&] { second.pass(); });
  const Event end = stream->record();
  CHECK(!event.reached());
  CHECK_EQ(event.time_ns(), std::int64_t{0});
  first.open();
  event.wait();  // returns though the second task is held up
  CHECK(event.reached());
  CHECK(!end.reached());
  second.open();
  end.wait();
  CHECK(end.time_ns() >= event.time_ns());
}

TEST(times_are_in_the_order_of_the_stream) {
  auto stream = make();
  std::vector<Event> events;
  for (int i = 0; i < 100; ++i) {
    events.push_back(stream->record());
    stream->enqueue([] {});
  }
  stream->synchronize();
  for (std::size_t i = 1; i < events.size(); ++i) CHECK(events[i - 1].time_ns() <= events[i].time_ns());
}

TEST(wait_for_gives_up_and_later_succeeds) {
  auto stream = make();
  Gate gate;
  stream->enqueue([&] { gate.pass(); });
  const Event event = stream->record();
  CHECK(!event.wait_for(0));
  CHECK(!event.wait_for(1'000'000));
  CHECK(!event.wait_for(-5));
  gate.open();
  CHECK(event.wait_for(kMinute));
  CHECK(event.wait_for(0));
}

TEST(wait_for_gets_a_queue_of_waits_going) {
  auto a = make(), b = make();
  Gate gate;
  a->enqueue([&] { gate.pass(); });
  b->wait(a->record());
  const Event event = b->record();
  CHECK(!event.wait_for(1'000'000));
  gate.open();
  CHECK(event.wait_for(kMinute));
}

TEST(wait_for_a_very_long_time_does_not_overflow) {
  auto stream = make();
  stream->enqueue([] {});
  CHECK(stream->record().wait_for(std::int64_t{1} << 62));
}

TEST(an_event_waits_on_another_thread) {
  auto stream = make();
  Gate gate;
  stream->enqueue([&] { gate.pass(); });
  const Event event = stream->record();
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&woken, event] {
      event.wait();
      ++woken;
    });
  }
  gate.open();
  for (auto& thread : threads) thread.join();
  CHECK_EQ(woken.load(), 4);
}

TEST(what_tasks_wrote_is_visible_to_who_polls) {
  auto stream = make();
  for (int round = 0; round < 200; ++round) {
    int plain = 0;
    stream->enqueue([&plain, round] { plain = round; });
    const Event event = stream->record();
    while (!event.query()) std::this_thread::yield();
    CHECK_EQ(plain, round);
  }
}

TEST(a_failure_stays_with_the_point) {
  auto stream = make();
  const Event before = stream->record();
  stream->enqueue([] { throw vdev::CardError("boom"); });
  const Event after = stream->record();
  after.wait();
  CHECK(!before.failure());
  CHECK(before.query());
  for (int i = 0; i < 2; ++i) {
    CHECK(after.failure());
    CHECK_THROWS(after.query(), vdev::CardError);
    CHECK_THROWS(after.synchronize(), vdev::CardError);
    CHECK_THROWS(stream->synchronize(), vdev::CardError);
    CHECK(after.reached());  // which raises nothing
  }
  vdev::program_errors().settle();
  CHECK(!after.failure());
  CHECK(after.query());
  CHECK(!stream->record().failure());
}

TEST(events_keep_no_stream_alive) {
  auto stream = make();
  const std::weak_ptr<Stream> watched = stream;
  stream->enqueue([] {});
  const Event event = stream->record();
  stream.reset();
  CHECK(watched.expired());
  CHECK(event.reached());
}

TEST_MAIN
