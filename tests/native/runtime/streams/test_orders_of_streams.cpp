// Streams under schedules: which stream runs its next task is drawn, and equal seeds give equal orders.
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/schedule.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/schedule.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/suppressions.hpp"

namespace schedule = base::schedule;
using vdev::Stream;

namespace {

struct Played {
  std::string written;
  schedule::Report report;
};

std::shared_ptr<Stream> make(int number) {
  return std::make_shared<Stream>(-1, number, 0, "orders");
}

/// Puts tasks that write on three streams, and returns the order in which they ran.
Played play(const std::string& text) {
  Played result;
  std::mutex mutex;  // the trace could miss tasks that run at the same time, so these would be seen here
  schedule::start(schedule::parse(text).value());
  {
    std::vector<std::shared_ptr<Stream>> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(make(i));
    for (int round = 0; round < 5; ++round) {
      for (int i = 0; i < 3; ++i) {
        const auto write = [&, i] {
          CHECK(mutex.try_lock());
          result.written += static_cast<char>('a' + i);
          mutex.unlock();
        };
        streams[static_cast<std::size_t>(i)]->enqueue(write);
      }
    }
    for (auto& stream : streams) stream->synchronize();
  }
  result.report = schedule::report();
  schedule::stop();
  return result;
}

/// Does the same until no thread has lost its turn, as happens on a machine that is very busy.
Played play_undisturbed(const std::string& text) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    Played played = play(text);
    if (played.report.taken == 0) return played;
  }
  throw std::runtime_error("a thread has lost its turn each time");
}

/// Whether a stream that should wait for another one reads what that one has not written yet.
bool reads_too_early(const std::string& text, bool waits) {
  int value = 0, read = -1;
  schedule::start(schedule::parse(text).value());
  {
    auto writer = make(0), reader = make(1);
    writer->enqueue([&] { value = 1; });
    if (waits) reader->wait(writer->record());
    reader->enqueue([&] { read = value; });
    reader->synchronize();
    writer->synchronize();
  }
  schedule::stop();
  return read != 1;
}

}  // namespace

TEST(a_seed_gives_one_order_of_tasks) {
  std::set<std::string> orders;
  for (const char* kind : {"random:", "pct:3:"}) {
    for (int seed = 0; seed < 15; ++seed) {
      const auto text = kind + std::to_string(seed);
      const Played first = play_undisturbed(text), second = play_undisturbed(text);
      CHECK_EQ(first.written, second.written);
      CHECK_EQ(first.report.trace, second.report.trace);
      CHECK_EQ(first.written.size(), std::size_t{15});
      orders.insert(first.written);
    }
  }
  CHECK(orders.size() > 10);
}

TEST(a_missing_wait_shows_in_some_orders) {
  int early = 0;
  for (int seed = 0; seed < 30; ++seed) {
    early += reads_too_early("random:" + std::to_string(seed), false);
    CHECK(!reads_too_early("random:" + std::to_string(seed), true));
    CHECK(!reads_too_early("pct:3:" + std::to_string(seed), true));
  }
  CHECK(early > 0);
  CHECK(early < 30);
}

TEST(a_host_that_asks_sees_the_end) {
  for (int seed = 0; seed < 10; ++seed) {
    schedule::start(schedule::parse("pct:2:" + std::to_string(seed)).value());
    {
      auto stream = make(0);
      std::atomic<bool> ran{false};
      stream->enqueue([&] { ran = true; });
      const auto event = stream->record();
      while (!event.query()) {
      }
      CHECK(ran);
    }
    schedule::stop();
  }
}

TEST(streams_outlive_the_end_of_a_schedule) {
  auto stream = make(0);
  std::atomic<int> ran{0};
  for (int round = 0; round < 5; ++round) {
    stream->enqueue([&] { ++ran; });
    schedule::start(schedule::parse("random:" + std::to_string(round)).value());
    stream->enqueue([&] { ++ran; });
    if (round % 2 == 0) stream->synchronize();
    stream->enqueue([&] { ++ran; });
    schedule::stop();
    stream->enqueue([&] { ++ran; });
    if (round % 2 == 1) stream->synchronize();
  }
  stream->synchronize();
  CHECK_EQ(ran.load(), 20);
}

TEST(a_wrong_text_names_what_is_allowed) {
  std::string text;
  try {
    vdev::start_schedule("pct:0:1", "");
  } catch (const vdev::InvalidArgument& error) {
    text = error.what();
  }
  CHECK(text.find("VDEV_SCHEDULE='pct:0:1' is not valid: expected random:SEED or pct:DEPTH:SEED") == 0);
  CHECK(!schedule::is_on());
}

TEST_MAIN
