// Promises: points that somebody outside of any stream reaches.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::Event;
using vdev::Promise;
using vdev::Stream;

namespace {

constexpr std::int64_t kMinute = 60'000'000'000;

std::shared_ptr<Stream> make_stream() {
  return std::make_shared<Stream>(-1, 7, 0, "test");
}

vdev::FailurePtr failure(const std::string& text) {
  return vdev::program_errors().fail_unknown(std::make_exception_ptr(std::runtime_error(text)));
}

std::string text_of(const vdev::FailurePtr& failure) {
  if (!failure) return "no error";
  try {
    std::rethrow_exception(failure->error());
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST(it_is_reached_when_fulfilled_and_not_before) {
  Promise promise("promise");
  const Event event = promise.event();
  CHECK(event.recorded());
  CHECK(!event.reached());
  CHECK(!event.wait_for(1'000'000));
  CHECK_EQ(event.time_ns(), std::int64_t{0});
  const auto before = base::monotonic_ns();
  promise.fulfil(nullptr);
  CHECK(event.reached());
  CHECK(event.wait_for(0));
  event.wait();
  CHECK(event.time_ns() >= before);
  CHECK(!event.failure());
  event.synchronize();
}

TEST(fulfilling_wakes_every_waiter_and_publishes_what_was_written) {
  for (int round = 0; round < 50; ++round) {
    Promise promise("promise");
    int written = 0;
    std::atomic<int> right{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i)
      waiters.emplace_back([&, i, event = promise.event()] {
        if (i % 2)
          event.wait();
        else if (!event.wait_for(kMinute))
          return;
        right += written == 42;
      });
    std::thread([&] {
      written = 42;
      promise.fulfil(nullptr);
    }).join();
    for (auto& waiter : waiters) waiter.join();
    CHECK_EQ(right.load(), 4);
  }
}

TEST(a_stream_waits_for_it_without_blocking_the_host) {
  auto stream = make_stream();
  Promise promise("promise");
  std::atomic<bool> ran{false};
  stream->wait(promise.event());
  stream->enqueue([&] { ran = true; });
  const Event behind = stream->record();
  CHECK(!behind.wait_for(5'000'000));
  CHECK(!ran);
  promise.fulfil(nullptr);
  CHECK(behind.wait_for(kMinute));
  CHECK(ran);
}

TEST(a_stream_that_waits_twice_waits_once) {
  Promise promise("promise"), other("other");
  auto stream = make_stream();
  const auto before = stream->queue()->last();
  for (int i = 0; i < 3; ++i) {
    stream->wait(promise.event());
    stream->wait(other.event());
  }
  CHECK_EQ(stream->queue()->last(), before + 2);
  // What is given up is not waited for, so the stream waits anew.
  stream->abandon(std::make_exception_ptr(vdev::CardError("given up")));
  const auto given_up = stream->queue()->last();
  stream->wait(promise.event());
  CHECK_EQ(stream->queue()->last(), given_up + 1);
  promise.fulfil(nullptr);
  other.fulfil(nullptr);
  stream->drain();
}

TEST(a_waiting_stream_inherits_the_failure) {
  auto stream = make_stream(), other = make_stream();
  Promise promise("promise");
  std::atomic<bool> ran{false};
  stream->wait(promise.event());
  other->wait(promise.event());
  stream->enqueue([&] { ran = true; });
  promise.fulfil(failure("the message never came"));
  CHECK_EQ(text_of(promise.event().failure()), std::string("the message never came"));
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS(stream->synchronize(), std::runtime_error);
    CHECK_THROWS(other->synchronize(), std::runtime_error);
    CHECK_THROWS(promise.event().synchronize(), std::runtime_error);
  }
  CHECK(!ran);
  // A stream that comes later, once the error was cleared, does not inherit it.
  vdev::program_errors().settle();
  auto late = make_stream();
  late->wait(promise.event());
  late->enqueue([&] { ran = true; });
  late->synchronize();
  CHECK(ran);
}

TEST(synchronize_raises_the_failure) {
  Promise promise("promise");
  std::thread fulfiller([&] { promise.fulfil(failure("gone")); });
  CHECK_THROWS(promise.event().synchronize(), std::runtime_error);
  CHECK_THROWS(promise.event().synchronize(), std::runtime_error);
  fulfiller.join();
  vdev::program_errors().settle();
}

TEST(the_first_fulfilment_counts) {
  Promise failed("promise"), good("promise");
  failed.fulfil(failure("first"));
  failed.fulfil(nullptr);
  CHECK_EQ(text_of(failed.event().failure()), std::string("first"));
  good.fulfil(nullptr);
  good.fulfil(failure("second"));
  CHECK(!good.event().failure());

  for (int round = 0; round < 50; ++round) {
    Promise raced("promise");
    std::thread one([&] { raced.fulfil(nullptr); });
    std::thread two([&] { raced.fulfil(failure("two")); });
    raced.event().wait();
    const bool had_error = raced.event().failure() != nullptr;
    one.join();
    two.join();
    CHECK_EQ(had_error, raced.event().failure() != nullptr);
  }
}

TEST(one_that_is_destroyed_unfulfilled_fails) {
  Event event;
  auto stream = make_stream();
  std::atomic<bool> ran{false};
  {
    Promise promise("recv from rank 1");
    event = promise.event();
    stream->wait(event);
    stream->enqueue([&] { ran = true; });
  }
  CHECK(event.reached());
  CHECK(text_of(event.failure()).find("recv from rank 1") != std::string::npos);
  CHECK_THROWS(stream->synchronize(), vdev::CardError);
  CHECK(!ran);
}

TEST(the_event_outlives_the_promise) {
  Event good;
  {
    Promise promise("promise");
    good = promise.event();
    promise.fulfil(nullptr);
  }
  CHECK(good.reached());
  CHECK(!good.failure());
  good.wait();
}

TEST(a_stream_may_hold_a_task_that_fulfils_what_another_waits_for) {
  auto first = make_stream(), second = make_stream();
  auto promise = std::make_shared<Promise>("promise");
  std::atomic<int> order{0};
  second->wait(promise->event());
  second->enqueue([&] { CHECK_EQ(order.exchange(2), 1); });
  first->enqueue([&, promise] {
    order = 1;
    promise->fulfil(nullptr);
  });
  const Event end = second->record();
  promise.reset();
  CHECK(end.wait_for(kMinute));
  second->synchronize();
  CHECK_EQ(order.load(), 2);
}

TEST(no_thread_is_needed) {
  // The stream's item is run by the waiting host, and the promise's point by nobody but fulfil().
  auto stream = make_stream();
  Promise promise("promise");
  stream->wait(promise.event());
  std::thread fulfiller([&] { promise.fulfil(nullptr); });
  stream->synchronize();
  fulfiller.join();
}

TEST(in_a_forked_child_it_does_nothing) {
  auto promise = std::make_unique<Promise>("promise");
  auto event = promise->event();
  Gate asleep;
  std::thread waiter([&] {
    asleep.open();
    event.wait();
  });
  asleep.pass();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    ::alarm(30);
    promise->fulfil(nullptr);
    const bool untouched = !event.reached();
    promise.reset();
    event = Event();
    ::_exit(untouched ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  promise->fulfil(nullptr);
  waiter.join();
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST_MAIN
