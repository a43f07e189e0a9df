// Streams of high priority begin their tasks first, and nothing waits for ever because of it.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

/// Has a stream of each priority, and notes which tasks have run. Tasks are deferred: no worker takes them
/// before a thread of the test does.
struct Scene {
  Scene() {
    stop_deferred_task_timer();
    longest_put_off.store(std::chrono::nanoseconds(std::chrono::minutes(5)).count());
  }

  void add(const std::shared_ptr<Stream>& stream, const char* name, Waits waits = Waits::kNever) {
    stream->enqueue(
        [this, name] {
          std::lock_guard lock(mutex);
          order += name;
        },
        Start::kByWaiter, waits);
  }

  /// Keeps the stream of high priority in a task that counts as computing, on its worker, until the gate
  /// opens.
  void hold(Gate& gate) {
    std::atomic<bool> began{false};
    high->enqueue(
        [&gate, &began] {
          began = true;
          gate.pass();
        },
        Start::kAtOnce, Waits::kNever);
    CHECK(eventually([&] { return began.load(); }));
  }

  std::shared_ptr<Stream> normal = card(0).new_stream(0, "normal");
  std::shared_ptr<Stream> high = card(0).new_stream(-1, "high");
  std::mutex mutex;
  std::string order;
};

}  // namespace

TEST(a_waiter_runs_the_tasks_of_high_priority_first) {
  Scene scene;
  scene.add(scene.normal, "n1 ");
  scene.add(scene.normal, "n2 ");
  scene.add(scene.high, "h1 ");
  scene.add(scene.high, "h2 ");
  scene.normal->synchronize();
  CHECK_EQ(scene.order, std::string("h1 h2 n1 n2 "));
}

TEST(tasks_that_come_meanwhile_go_before_the_next_one) {
  Scene scene;
  scene.normal->enqueue(
      [&] {
        scene.add(scene.high, "h1 ");
        scene.order += "n1 ";
      },
      Start::kByWaiter);
  scene.add(scene.normal, "n2 ");
  scene.normal->synchronize();
  CHECK_EQ(scene.order, std::string("n1 h1 n2 "));
}

TEST(a_worker_lets_them_go_first_too) {
  Scene scene;
  Gate gate;
  scene.normal->enqueue([&] { gate.pass(); });
  scene.add(scene.normal, "n1 ");
  scene.add(scene.high, "h1 ");
  gate.open();
  CHECK(eventually([&] { return scene.normal->idle(); }));  // idle() wakes workers and runs nothing
  CHECK_EQ(scene.order, std::string("h1 n1 "));
}

TEST(a_task_of_high_priority_that_may_wait_begins_on_its_own_worker) {
  Scene scene;
  // It waits for the task that gives way to it. The test ends, so that task does not wait for its end.
  std::atomic<bool> ran{false};
  scene.high->enqueue(
      [&] {
        if (!eventually([&] { return ran.load(); })) scene.order += "too late ";
      },
      Start::kByWaiter);
  scene.add(scene.high, "h2 ");
  scene.normal->enqueue([&] { ran = true; }, Start::kByWaiter);
  scene.add(scene.normal, "n2 ");
  scene.normal->synchronize();
  scene.high->synchronize();
  CHECK_EQ(scene.order.find("too late"), std::string::npos);
}

TEST(a_replay_gives_way_between_its_tasks) {
  Scene scene;
  auto capture = Capture::begin(scene.normal, CaptureMode::kGlobal, new_private_pool());
  scene.normal->enqueue([&] {
    scene.order += "g1 ";
    scene.add(scene.high, "h1 ");
  });
  scene.add(scene.normal, "g2 ");
  const auto graph = capture->end();
  graph->replay(*scene.normal, nullptr);
  scene.normal->synchronize();
  CHECK_EQ(scene.order, std::string("g1 h1 g2 "));
}

TEST(a_thread_in_the_place_of_a_task_gives_way) {
  Scene scene;
  scene.add(scene.high, "h1 ");
  CHECK(scene.normal->queue()->is_outranked());
  CHECK(!scene.high->queue()->is_outranked());
  scene.high->queue()->give_way();
  CHECK_EQ(scene.order, std::string());
  scene.normal->queue()->give_way();
  CHECK_EQ(scene.order, std::string("h1 "));
  CHECK(!scene.normal->queue()->is_outranked());
}

TEST(a_queue_that_waits_for_the_caller_is_not_waited_for) {
  Scene scene;
  scene.add(scene.normal, "n1 ");
  scene.high->wait(scene.normal->record());
  scene.add(scene.high, "h1 ");
  scene.add(scene.normal, "n2 ");
  scene.normal->synchronize();
  // Once n1 has run, h1 can begin, and does before n2.
  CHECK_EQ(scene.order, std::string("n1 h1 n2 "));

  scene.order.clear();
  scene.add(scene.normal, "n1 ");
  scene.high->wait(scene.normal->record());
  scene.add(scene.high, "h1 ");
  scene.high->synchronize();
  CHECK_EQ(scene.order, std::string("n1 h1 "));
}

TEST(a_running_queue_begins_its_next_tasks_first) {
  Scene scene;
  Gate gate;
  scene.hold(gate);
  scene.add(scene.high, "h1 ");
  scene.add(scene.high, "h2 ");
  scene.add(scene.normal, "n1 ");
  std::thread waiter([&] { scene.normal->synchronize(); });
  gate.open();
  waiter.join();
  scene.high->synchronize();
  // The last task of high priority may run beside n1, so only the one before it is known to come first.
  CHECK(scene.order.find("h1 ") < scene.order.find("n1 "));
}

TEST(a_task_is_put_off_for_a_limited_time) {
  Scene scene;
  longest_put_off.store(1'000'000);
  Gate gate;
  scene.hold(gate);
  scene.add(scene.high, "h1 ");
  scene.add(scene.normal, "n1 ");
  scene.normal->synchronize();
  CHECK_EQ(scene.order, std::string("n1 "));
  gate.open();
  scene.high->synchronize();
}

TEST(nothing_is_put_off_while_a_core_is_free) {
  if (base::UsableCores::of_this_process().count() < 2) return;
  set_kernel_threads(1);
  {
    Scene scene;
    Gate gate;
    scene.hold(gate);
    scene.add(scene.high, "h1 ");
    scene.add(scene.normal, "n1 ");
    scene.normal->synchronize();
    CHECK_EQ(scene.order, std::string("n1 "));
    gate.open();
    scene.high->synchronize();
  }
  set_kernel_threads(base::UsableCores::of_this_process().count());
}

TEST(cards_do_not_wait_for_each_other) {
  Scene scene;
  const auto other = card(1).new_stream(0, "other");
  scene.add(scene.high, "h1 ");
  scene.add(other, "o1 ");
  other->synchronize();
  CHECK_EQ(scene.order, std::string("o1 "));
  scene.high->synchronize();
}

TEST(what_is_dropped_is_not_waited_for) {
  Scene scene;
  Gate gate;
  scene.hold(gate);
  scene.add(scene.high, "h1 ");
  scene.add(scene.normal, "n1 ");
  std::thread waiter([&] { scene.normal->synchronize(); });
  scene.high->abandon(std::make_exception_ptr(std::runtime_error("dropped")));
  waiter.join();
  CHECK_EQ(scene.order, std::string("n1 "));
  gate.open();
  CHECK_THROWS(scene.high->synchronize(), std::runtime_error);
  program_errors().settle();
}

TEST(an_error_stays_with_its_stream) {
  Scene scene;
  scene.high->enqueue([] { throw std::runtime_error("high"); }, Start::kByWaiter, Waits::kNever);
  scene.add(scene.normal, "n1 ");
  scene.normal->synchronize();
  CHECK_EQ(scene.order, std::string("n1 "));
  CHECK_THROWS(scene.high->synchronize(), std::runtime_error);
  program_errors().settle();
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "2", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_VISIBLE_DEVICES");
  return check::run(argc, argv);
}
