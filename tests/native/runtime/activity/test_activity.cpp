// The recording of activity: labels, lanes, launches, and threads that record while recordings begin and end.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::ActivityKind;
using vdev::ActivityLabel;
using vdev::ActivityRun;
using vdev::ActivityScope;
using vdev::Recorded;
using vdev::Start;
using vdev::Stream;

namespace {

constexpr std::size_t kMost = 1000;

std::shared_ptr<Stream> make_stream(std::int64_t id = 7, std::string name = "test") {
  return std::make_shared<Stream>(3, id, 0, std::move(name));
}

ActivityLabel labelled(const char* name, ActivityKind kind = ActivityKind::kOperator) {
  return {kind, name};
}

std::vector<std::string> names(const Recorded& recorded) {
  std::vector<std::string> result;
  for (const auto& activity : recorded.activities) result.push_back(activity.launch->label.name);
  return result;
}

}  // namespace

TEST(nothing_is_labelled_or_recorded_without_a_recording) {
  bool asked = false;
  auto stream = make_stream();
  const ActivityScope scope([&] {
    asked = true;
    return ActivityLabel{};
  });
  stream->enqueue([] {});
  stream->synchronize();
  vdev::open_correlation(1);
  CHECK(!asked);
  CHECK_EQ(vdev::current_correlation(), std::uint64_t{0});
  // What was enqueued before the recording is not in it.
  Gate gate;
  stream->enqueue([&] { gate.pass(); });
  const auto recording = vdev::start_recording(kMost);
  gate.open();
  stream->synchronize();
  CHECK_EQ(vdev::stop_recording(recording).activities.size(), std::size_t{0});
}

TEST(a_task_has_its_label_its_lane_and_its_launch) {
  auto stream = make_stream(9, "lane nine");
  const auto recording = vdev::start_recording(kMost);
  vdev::open_correlation(40);
  vdev::open_correlation(41);
  vdev::open_correlation(99);
  vdev::close_correlation();
  vdev::open_correlation(42);
  {
    const ActivityScope outer([] { return labelled("outer"); });
    const ActivityScope inner([] { return ActivityLabel{ActivityKind::kCopy, "inner", 512}; });
    stream->enqueue([] {});
  }
  vdev::close_correlation();
  stream->enqueue([] {});
  stream->synchronize();
  const auto recorded = vdev::stop_recording(recording);
  CHECK_EQ(recorded.activities.size(), std::size_t{2});
  const auto& copy = recorded.activities[0];
  CHECK(copy.launch->label.kind == ActivityKind::kCopy);
  CHECK_EQ(copy.launch->label.name, std::string("inner"));
  CHECK_EQ(copy.launch->label.bytes, std::size_t{512});
  CHECK_EQ(copy.launch->label.correlation, std::uint64_t{42});
  const std::array<std::uint64_t, 3> around{41}, none{};
  CHECK(copy.launch->outer_correlations == around);
  CHECK_EQ(copy.launch->lane->card, 3);
  CHECK_EQ(copy.launch->lane->stream, std::int64_t{9});
  CHECK_EQ(copy.launch->lane->name, std::string("lane nine"));
  CHECK_EQ(copy.launch->thread, static_cast<std::int32_t>(::gettid()));
  CHECK(copy.launch->begin <= copy.launch->end && copy.launch->end <= copy.begin && copy.begin <= copy.end);
  const auto& task = recorded.activities[1];
  CHECK(task.launch->label.kind == ActivityKind::kTask);
  CHECK_EQ(task.launch->label.correlation, std::uint64_t{41});
  CHECK(task.launch->outer_correlations == none);
  CHECK(task.begin >= copy.end);
}

TEST(what_a_task_launches_does_not_have_the_label_of_the_thread_that_helps) {
  auto stream = make_stream(), other = make_stream(8);
  const auto recording = vdev::start_recording(kMost);
  stream->enqueue([&] { other->enqueue([] {}, Start::kByWaiter); }, Start::kByWaiter);
  {
    const ActivityScope scope([] { return labelled("of the waiter"); });
    stream->synchronize();  // this thread runs the task
    other->synchronize();
    other->enqueue([] {}, Start::kByWaiter);
  }
  other->synchronize();
  const std::vector<std::string> wanted{"", "", "of the waiter"};
  CHECK(names(vdev::stop_recording(recording)) == wanted);
}

TEST(what_a_thread_runs_itself_is_on_its_current_stream_and_only_once) {
  const auto recording = vdev::start_recording(kMost);
  const auto stream = vdev::card(0).new_stream(0, "current");
  vdev::set_current_stream(0, stream->id());
  {
    const ActivityScope scope([] { return labelled("direct"); });
    const ActivityRun run(0);
    const ActivityRun inside(0);
    const ActivityRun part = ActivityRun::part([] { return labelled("part", ActivityKind::kCollective); });
  }
  stream->enqueue([] { const ActivityRun inside_of_a_task(0); });
  stream->synchronize();
  vdev::set_current_stream(0, 0);
  {
    const ActivityRun no_part = ActivityRun::part([] { return labelled("of nothing"); });
  }
  const auto recorded = vdev::stop_recording(recording);
  const std::vector<std::string> wanted{"part", "direct", ""};
  CHECK(names(recorded) == wanted);
  for (const auto& activity : recorded.activities)
    CHECK_EQ(activity.launch->lane->name, std::string("current"));
}

TEST(tasks_that_do_not_run_are_not_recorded_and_those_that_throw_are) {
  auto stream = make_stream();
  const auto recording = vdev::start_recording(kMost);
  {
    const ActivityScope scope([] { return labelled("throws"); });
    stream->enqueue([] { throw std::runtime_error("no"); }, Start::kByWaiter);
  }
  const ActivityScope scope([] { return labelled("skipped"); });
  stream->enqueue([] {}, Start::kByWaiter);
  CHECK_THROWS(stream->synchronize(), std::runtime_error);
  vdev::program_errors().settle();
  Gate gate, running;
  stream->enqueue([&] {
    running.open();
    gate.pass();
  });
  running.pass();
  stream->enqueue([] {});
  stream->abandon(std::make_exception_ptr(std::runtime_error("dropped")));
  gate.open();
  CHECK_THROWS(stream->synchronize(), std::runtime_error);
  vdev::program_errors().settle();
  const std::vector<std::string> wanted{"throws", "skipped"};  // the latter is the task with the gate
  CHECK(names(vdev::stop_recording(recording)) == wanted);
}

TEST(a_replay_shows_the_labels_that_its_tasks_had_in_the_capture) {
  auto stream = make_stream();
  const auto capture =
      vdev::Capture::begin(stream, vdev::CaptureMode::kThreadLocal, vdev::new_private_pool());
  {
    const ActivityScope scope([] { return labelled("captured"); });
    stream->enqueue([] {});
  }
  stream->enqueue([] {});
  const auto graph = capture->end();
  CHECK_EQ(vdev::labels_wanted.load(), 0);
  graph->replay(*stream, nullptr);
  stream->synchronize();
  const auto recording = vdev::start_recording(kMost);
  CHECK_EQ(vdev::labels_wanted.load(), 1);
  graph->replay(*stream, nullptr);
  stream->synchronize();
  const auto recorded = vdev::stop_recording(recording);
  CHECK_EQ(vdev::labels_wanted.load(), 0);
  const std::vector<std::string> wanted{"captured", "", "graph replay"};
  CHECK(names(recorded) == wanted);
  CHECK(recorded.activities[0].launch->is_part && recorded.activities[1].launch->is_part);
  CHECK(recorded.activities[2].begin <= recorded.activities[0].begin);
  CHECK(recorded.activities[1].end <= recorded.activities[2].end);
}

TEST(what_is_no_task_can_be_recorded) {
  const auto lane = std::make_shared<const vdev::Lane>(vdev::Lane{3, vdev::Lane::kNoStream, "messages"});
  const auto recording = vdev::start_recording(kMost);
  const auto label = [] { return labelled("message", ActivityKind::kCollective); };
  std::unique_ptr<vdev::Launch> kept;
  {
    const ActivityScope scope(label);
    vdev::record_run({vdev::make_launch(lane), 5, 7});
    kept = vdev::make_launch(lane);
  }
  const auto recorded = vdev::stop_recording(recording);
  CHECK(names(recorded) == std::vector<std::string>{"message"});
  CHECK_EQ(recorded.activities[0].begin, 5);
  CHECK_EQ(recorded.activities[0].end, 7);
  CHECK_EQ(recorded.activities[0].launch->lane->name, std::string("messages"));
  // A message that ends after its recording is in none.
  const auto next = vdev::start_recording(kMost);
  vdev::record_run({std::move(kept), 8, 9});
  CHECK(vdev::stop_recording(next).activities.empty());
}

TEST(a_recording_is_bounded_and_counts_what_it_loses) {
  auto stream = make_stream();
  const auto recording = vdev::start_recording(3);
  for (int i = 0; i < 10; ++i) stream->enqueue([] {});
  stream->synchronize();
  const auto recorded = vdev::stop_recording(recording);
  CHECK_EQ(recorded.activities.size(), std::size_t{3});
  CHECK_EQ(recorded.lost, std::size_t{7});
}

TEST(a_recording_gets_nothing_of_another_one) {
  auto stream = make_stream();
  Gate gate;
  const auto first = vdev::start_recording(kMost);
  vdev::open_correlation(5);
  vdev::open_range(6);
  stream->enqueue([&] { gate.pass(); });
  const auto second = vdev::start_recording(kMost);
  CHECK_EQ(vdev::stop_recording(first).activities.size(), std::size_t{0});
  CHECK(vdev::is_recording());
  CHECK_EQ(vdev::current_correlation(), std::uint64_t{0});
  vdev::close_correlation();  // opened in the first
  vdev::close_range();
  gate.open();
  stream->synchronize();
  stream->enqueue([] {});
  stream->synchronize();
  const auto recorded = vdev::stop_recording(second);
  CHECK(!vdev::is_recording());
  CHECK_EQ(recorded.activities.size(), std::size_t{1});
  CHECK(!recorded.activities[0].launch->range);
  CHECK_EQ(vdev::stop_recording(second).activities.size(), std::size_t{0});
}

TEST(threads_without_a_range_work_for_the_outermost_one) {
  auto stream = make_stream();
  const auto recording = vdev::start_recording(kMost);
  const auto launch = [&] {
    stream->enqueue([] {});
    stream->synchronize();
  };
  vdev::open_range(1);
  vdev::open_range(2);
  std::thread([&] {
    launch();
    vdev::open_range(3);
    launch();
    vdev::close_range();
    launch();
  }).join();
  launch();
  vdev::close_range();
  vdev::close_range();
  vdev::close_range();  // one too many
  launch();
  const auto recorded = vdev::stop_recording(recording);
  std::vector<std::vector<std::uint64_t>> found;
  for (const auto& activity : recorded.activities) {
    auto& ids = found.emplace_back();
    for (auto* range = activity.launch->range.get(); range; range = range->outer.get())
      ids.push_back(range->id);
  }
  const std::vector<std::vector<std::uint64_t>> wanted{{1}, {3, 1}, {1}, {2, 1}, {}};
  CHECK(found == wanted);
}

TEST(threads_launch_and_run_while_recordings_begin_and_end) {
  constexpr int kThreads = 4, kRecordings = 40;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      auto stream = make_stream(i);
      for (std::uint64_t round = 1; !over; ++round) {
        vdev::open_range(round);
        vdev::open_correlation(round);
        const ActivityScope scope(
            [&] { return ActivityLabel{ActivityKind::kOperator, "round", static_cast<std::size_t>(round)}; });
        stream->enqueue([] {}, round % 2 ? Start::kAtOnce : Start::kByWaiter);
        {
          const ActivityRun run(0);
        }
        if (round % 3 == 0) stream->synchronize();
        vdev::close_correlation();
        vdev::close_range();
      }
      stream->synchronize();
    });
  std::size_t seen = 0;
  for (int i = 0; i < kRecordings; ++i) {
    const auto recording = vdev::start_recording(1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto recorded = vdev::stop_recording(recording);
    CHECK(recorded.activities.size() <= 1000);
    seen += recorded.activities.size();
    for (const auto& activity : recorded.activities) {
      const auto& launch = *activity.launch;
      CHECK_EQ(launch.recording, recording);
      CHECK(launch.begin <= launch.end && launch.end <= activity.begin && activity.begin <= activity.end);
      // A label of the last recording has no number in this one, and a number is that of its label's round.
      if (launch.label.name == "round" && launch.label.correlation != 0)
        CHECK_EQ(launch.label.correlation, std::uint64_t{launch.label.bytes});
    }
  }
  over = true;
  for (auto& thread : threads) thread.join();
  CHECK(seen > 0);
}

TEST(a_forked_child_keeps_nothing) {
  auto stream = make_stream();
  const auto recording = vdev::start_recording(kMost);
  stream->enqueue([] {});
  stream->synchronize();
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    ::alarm(30);
    {
      const ActivityRun run(vdev::make_launch(stream->queue()->lane()));
    }
    const bool none = vdev::stop_recording(recording).activities.empty();
    ::_exit(none ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
  CHECK_EQ(vdev::stop_recording(recording).activities.size(), std::size_t{1});
}

TEST_MAIN
