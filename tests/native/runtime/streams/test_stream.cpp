// Streams: order, helping, errors, ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::CardError;
using vdev::Event;
using vdev::Stream;

namespace {

std::shared_ptr<Stream> make(const char* name = "test") {
  return std::make_shared<Stream>(-1, 7, 0, name);
}

std::string what(const vdev::FailurePtr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure->error());
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::string synchronize_error(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

void fail(const char* text) {
  throw std::runtime_error(text);
}

}  // namespace

TEST(runs_in_order) {
  auto stream = make();
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) stream->enqueue([&seen, i] { seen.push_back(i); });
  stream->synchronize();
  CHECK_EQ(seen.size(), std::size_t{1000});
  for (int i = 0; i < 1000; ++i) CHECK_EQ(seen[i], i);
  CHECK(stream->idle());
}

TEST(runs_without_anybody_waiting) {
  auto stream = make();
  std::atomic<bool> ran{false};
  stream->enqueue([&] { ran = true; });
  CHECK(eventually([&] { return ran.load(); }));
  CHECK(eventually([&] { return stream->idle(); }));
}

TEST(idle_is_false_while_a_task_runs) {
  auto stream = make();
  Gate gate;
  CHECK(stream->idle());
  stream->enqueue([&] { gate.pass(); });
  CHECK(!stream->idle());
  gate.open();
  stream->synchronize();
  CHECK(stream->idle());
}

TEST(two_streams_do_not_wait_for_each_other) {
  auto slow = make(), fast = make();
  Gate gate;
  slow->enqueue([&] { gate.pass(); });
  int ran = 0;
  fast->enqueue([&] { ++ran; });
  fast->synchronize();
  CHECK_EQ(ran, 1);
  CHECK(!slow->idle());
  gate.open();
  slow->synchronize();
}

TEST(captures_are_gone_once_synchronised) {
  auto stream = make();
  auto token = std::make_shared<int>(1);
  stream->enqueue([token] {});
  stream->synchronize();
  CHECK_EQ(token.use_count(), 1L);
}

TEST(a_task_may_enqueue_on_its_own_stream) {
  auto stream = make();
  std::vector<int> seen;
  Gate gate;
  stream->enqueue([&] {
    gate.pass();
    seen.push_back(1);
    stream->enqueue([&] { seen.push_back(3); });
  });
  stream->enqueue([&] { seen.push_back(2); });
  gate.open();
  stream->synchronize();
  stream->synchronize();
  CHECK_EQ(seen.size(), std::size_t{3});
  CHECK_EQ(seen[2], 3);
}

TEST(a_task_that_synchronises_its_own_stream_fails) {
  auto stream = make("mine");
  stream->enqueue([&] { stream->synchronize(); });
  CHECK(synchronize_error(*stream).find("'mine'") != std::string::npos);
  vdev::program_errors().settle();
  stream->enqueue([&] { stream->record().wait(); });
  CHECK(!synchronize_error(*stream).empty());
  vdev::program_errors().settle();
  bool returned = false;
  stream->enqueue([&] {
    stream->drain();
    returned = true;
  });
  stream->synchronize();
  CHECK(returned);
}

// What these tasks read and write is not known to the stream.
TEST(an_error_stands_until_it_is_cleared) {
  auto stream = make();
  int ran = 0;
  stream->enqueue([] { fail("first"); });
  stream->enqueue([&] { ++ran; });
  stream->enqueue([] { fail("second"); });
  stream->drain();
  CHECK_EQ(ran, 0);
  for (int i = 0; i < 3; ++i) CHECK_EQ(synchronize_error(*stream), std::string("first"));
  stream->enqueue([&] { ++ran; });
  CHECK_EQ(synchronize_error(*stream), std::string("first"));
  CHECK_THROWS(stream->query(), std::runtime_error);
  CHECK_EQ(ran, 0);
  vdev::program_errors().settle();
  CHECK(stream->query());
  stream->enqueue([&] { ++ran; });
  stream->synchronize();
  CHECK_EQ(ran, 1);
}

TEST(skipped_tasks_let_go_of_their_captures) {
  auto stream = make();
  auto token = std::make_shared<int>(1);
  stream->enqueue([] { fail("first"); });
  stream->enqueue([token] {});
  stream->drain();
  CHECK_EQ(token.use_count(), 1L);
}

TEST(an_error_is_inherited_across_streams) {
  auto a = make("a"), b = make("b"), c = make("c"), d = make("d");
  std::atomic<int> ran{0};
  a->enqueue([] { fail("boom"); });
  const Event point = a->record();
  b->wait(point);
  b->enqueue([&] { ++ran; });
  const Event later = b->record();
  c->wait(later);
  c->enqueue([&] { ++ran; });
  for (const auto& stream : {a, b, c, c, b, a}) CHECK_EQ(synchronize_error(*stream), std::string("boom"));
  CHECK_EQ(ran.load(), 0);
  CHECK_EQ(what(point.failure()), std::string("boom"));
  CHECK_EQ(what(later.failure()), std::string("boom"));
  CHECK_THROWS(later.query(), std::runtime_error);
  d->enqueue([&] { ++ran; });  // has nothing to do with it
  d->synchronize();
  CHECK_EQ(ran.load(), 1);
  vdev::program_errors().settle();
  d->wait(later);
  for (const auto& stream : {a, b, c, d}) stream->enqueue([&] { ++ran; });
  for (const auto& stream : {a, b, c, d}) CHECK_EQ(synchronize_error(*stream), std::string(""));
  CHECK_EQ(ran.load(), 5);
  CHECK(later.query() && !later.failure());
}

TEST(a_task_that_was_enqueued_before_an_error_was_cleared_does_not_run) {
  auto stream = make();
  Gate gate;
  int before = 0, after = 0;
  stream->enqueue([] { fail("boom"); });
  CHECK_EQ(synchronize_error(*stream), std::string("boom"));
  auto other = make();
  other->enqueue([&] { gate.pass(); });
  other->wait(stream->record());
  other->enqueue([&] { ++before; });
  vdev::program_errors().settle();
  other->enqueue([&] { ++after; });
  gate.open();
  // Its giving up is a new failure, of which the program did not know when it cleared the first.
  CHECK_EQ(synchronize_error(*other), std::string("boom"));
  CHECK_EQ(before, 0);
  CHECK_EQ(after, 0);
  vdev::program_errors().settle();
  CHECK_EQ(synchronize_error(*other), std::string(""));
}

TEST(wait_orders_streams) {
  auto a = make(), b = make();
  Gate gate;
  std::atomic<int> value{0};
  int seen = -1;
  a->enqueue([&] {
    gate.pass();
    value = 42;
  });
  b->wait(a->record());
  b->enqueue([&] { seen = value; });
  CHECK(!b->idle());
  gate.open();
  b->synchronize();
  CHECK_EQ(seen, 42);
}

TEST(a_wait_alone_is_passed_by_polling) {
  // Nothing but a wait in the queue wakes no worker; whoever polls gets it going.
  auto a = make(), b = make();
  Gate gate;
  a->enqueue([&] { gate.pass(); });
  b->wait(a->record());
  CHECK(!b->idle());
  gate.open();
  CHECK(eventually([&] { return b->idle(); }));
}

TEST(a_task_for_the_waiter_runs_when_waited_or_polled_for_or_followed_or_left_alone) {
  for (int way = 0; way < 6; ++way) {
    auto stream = make();
    std::atomic<int> ran{0};
    stream->enqueue([&] { ++ran; }, vdev::Start::kByWaiter);
    const Event point = stream->record();
    if (way == 0) CHECK(eventually([&] { return point.reached(); }));
    if (way == 1) CHECK(eventually([&] { return stream->idle(); }));
    if (way == 2) CHECK(point.wait_for(60'000'000'000));
    if (way == 3) stream->enqueue([&] { ++ran; });
    if (way == 4) point.wait();
    CHECK(eventually([&] { return ran == 1 + (way == 3); }));
  }
}

TEST(tasks_for_the_waiter_run_without_one_for_as_long_as_they_come) {
  auto stream = make();
  std::atomic<int> ran{0};
  for (int i = 0; i < 5; ++i) {
    stream->enqueue([&] { ++ran; }, vdev::Start::kByWaiter);
    CHECK(eventually([&] { return ran == i + 1; }));
    // From now and then to so rarely that nothing is expected in between.
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * i));
  }
}

TEST(a_task_left_alone_runs_while_other_streams_find_their_waiters) {
  auto left = make(), busy = make();
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> ran{0};
    left->enqueue([&] { ++ran; }, vdev::Start::kByWaiter);
    // However often others put the looking after off.
    CHECK(eventually([&] {
      for (int k = 0; k < 100; ++k) {
        busy->enqueue([] {}, vdev::Start::kByWaiter);
        busy->synchronize();
      }
      return ran == 1;
    }));
  }
}

TEST(tasks_left_alone_by_many_threads_all_run) {
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<std::thread> threads;
  std::atomic<int> ran{0}, expected{0}, late{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      auto stream = make();
      for (int i = 0; i < kRounds; ++i) {
        std::atomic<bool> done{false};
        const int tasks = 1 + int(random() % 3);
        for (int k = 0; k < tasks; ++k) {
          stream->enqueue([&] { ++ran; }, vdev::Start::kByWaiter);
          ++expected;
        }
        stream->enqueue([&] { done = true; }, vdev::Start::kByWaiter);
        if (random() % 2 == 0) stream->synchronize();
        if (random() % 8 == 0) stream = make();
        if (!eventually([&] { return done.load(); })) ++late;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(late.load(), 0);
  CHECK_EQ(ran.load(), expected.load());
}

TEST(a_stream_with_a_task_left_alone_may_go) {
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> ran{0};
    auto stream = make();
    stream->enqueue([&] { ++ran; }, vdev::Start::kByWaiter);
    stream.reset();
    CHECK_EQ(ran.load(), 1);
  }
}

TEST(a_chain_of_waits_is_run_by_one_synchronising_thread) {
  constexpr int kStreams = 20;
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<int> seen;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(make());
    if (i > 0) streams[i]->wait(streams[i - 1]->record());
    streams[i]->enqueue([&seen, i] { seen.push_back(i); });
  }
  streams.back()->synchronize();
  CHECK_EQ(seen.size(), std::size_t{kStreams});
  for (int i = 0; i < kStreams; ++i) CHECK_EQ(seen[i], i);
}

TEST(crossing_waits_inside_tasks_do_not_deadlock) {
  // Each task waits, on whatever thread runs it, for a point of the other stream that lies before it.
  for (int round = 0; round < 200; ++round) {
    auto a = make(), b = make();
    std::atomic<int> ran{0};
    for (int i = 0; i < 10; ++i) {
      const Event from_a = a->record(), from_b = b->record();
      a->enqueue([&ran, from_b] {
        from_b.wait();
        ++ran;
      });
      b->enqueue([&ran, from_a] {
        from_a.wait();
        ++ran;
      });
    }
    a->synchronize();
    b->synchronize();
    CHECK_EQ(ran.load(), 20);
  }
}

TEST(abandon_drops_the_queue_and_tells_the_points) {
  auto stream = make();
  Gate entered, gate;
  int ran = 0;
  stream->enqueue([&] {
    entered.open();
    gate.pass();
  });
  entered.pass();
  auto token = std::make_shared<int>(1);
  stream->enqueue([&ran, token] { ++ran; });
  const Event point = stream->record();
  stream->abandon(std::make_exception_ptr(CardError("aborted")));
  CHECK(!point.reached());  // the running task may still use its memory
  gate.open();
  point.wait();
  CHECK_EQ(token.use_count(), 1L);
  CHECK_EQ(what(point.failure()), std::string("aborted"));
  CHECK_EQ(ran, 0);
  CHECK_EQ(synchronize_error(*stream), std::string("aborted"));
  vdev::program_errors().settle();
  stream->enqueue([&] { ++ran; });
  stream->synchronize();
  CHECK_EQ(ran, 1);
}

TEST(abandon_of_an_idle_stream_changes_nothing) {
  auto stream = make();
  stream->abandon(std::make_exception_ptr(CardError("aborted")));
  CHECK_EQ(synchronize_error(*stream), std::string(""));
  stream->enqueue([] {});
  CHECK_EQ(synchronize_error(*stream), std::string(""));
}

TEST(the_destructor_runs_what_is_queued) {
  std::atomic<int> ran{0};
  for (int round = 0; round < 100; ++round) {
    auto stream = make();
    for (int i = 0; i < 5; ++i) stream->enqueue([&] { ++ran; });
  }
  CHECK_EQ(ran.load(), 500);
}

TEST(points_outlive_their_stream) {
  Event point;
  {
    auto stream = make();
    stream->enqueue([] {});
    point = stream->record();
  }
  CHECK(point.reached());
  point.wait();
}

TEST(the_last_pointer_may_go_inside_a_task) {
  for (int round = 0; round < 200; ++round) {
    auto ran = std::make_shared<std::atomic<int>>(0);
    auto stream = make();
    Gate ready;
    // The task owns the stream from now on: it is destroyed by whichever thread runs the task.
    auto holder = std::make_shared<std::shared_ptr<Stream>>(stream);
    stream->enqueue([holder, &ready, ran] {
      ready.pass();
      holder->reset();
      ++*ran;
    });
    stream->enqueue([ran] { ++*ran; });
    const Event end = stream->record();
    stream.reset();
    ready.open();
    if (round % 2 == 0) end.wait();  // sometimes this thread is the one inside the task
    CHECK(eventually([&] { return *ran == 2; }));
    CHECK(eventually([&] { return end.reached(); }));
  }
}

TEST(stop_ends_the_worker_and_leaves_a_usable_queue) {
  auto stream = make();
  int ran = 0;
  stream->enqueue([&] { ++ran; });
  stream->synchronize();
  CHECK(stream->queue()->stop(60'000'000'000));
  stream->enqueue([&] { ++ran; });
  stream->synchronize();  // by helping
  CHECK_EQ(ran, 2);
}

TEST(stop_leaves_a_stuck_worker_behind) {
  auto gate = std::make_shared<Gate>();
  auto entered = std::make_shared<Gate>();
  auto stream = make();
  stream->enqueue([gate, entered] {
    entered->open();
    gate->pass();
  });
  entered->pass();
  CHECK(!stream->queue()->stop(1000));
  gate->open();
  stream->synchronize();
}

TEST(many_threads_enqueue_record_wait_and_synchronise) {
  constexpr int kThreads = 4, kStreams = 3, kRounds = 400;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make());
  std::vector<long> plain(kStreams, 0);  // no atomics: one task at a time is what a stream promises
  std::atomic<long> expected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      Event last;
      for (int i = 0; i < kRounds; ++i) {
        const auto s = random() % kStreams;
        switch (random() % 6) {
          case 0:
          case 1:
          case 2:
            streams[s]->enqueue([&plain, s] { ++plain[s]; });
            ++expected;
            break;
          case 3:
            last = streams[s]->record();
            break;
          case 4:
            streams[s]->wait(last);
            break;
          default:
            if (random() % 2) {
              last.wait();
            } else {
              streams[s]->synchronize();
            }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& stream : streams) stream->synchronize();
  CHECK_EQ(plain[0] + plain[1] + plain[2], expected.load());
}

TEST(many_threads_synchronise_one_stream) {
  auto stream = make();
  long plain = 0;
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        bool mine = false;
        stream->enqueue([&] {
          ++plain;
          mine = true;
        });
        stream->synchronize();
        if (!mine) failed = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(!failed);
  CHECK_EQ(plain, 2000L);
}

TEST(many_threads_fail_raise_and_clear) {
  auto stream = make();
  std::atomic<int> thrown{0};
  // Several threads catch the same exception object. It is kept until they have joined, because the thread
  // sanitizer does not see the reference count that orders their last use before the object is freed.
  std::vector<std::exception_ptr> raised[4];
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        stream->enqueue([&] {
          ++thrown;
          fail("boom");
        });
        try {
          stream->synchronize();
        } catch (const std::exception&) {
          raised[t].push_back(std::current_exception());
        }
        if (t == 0) vdev::program_errors().settle();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(thrown > 0);
  CHECK(
      std::any_of(std::begin(raised), std::end(raised), [](const auto& errors) { return !errors.empty(); }));
  vdev::program_errors().settle();
  CHECK_EQ(synchronize_error(*stream), std::string(""));
}

TEST_MAIN
