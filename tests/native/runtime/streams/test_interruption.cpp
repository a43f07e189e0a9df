// Waits of the main thread that somebody ends: what they raise, who is told, and what goes on.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/periods.hpp"
#include "csrc_device/runtime/interruption.hpp"
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

struct Pressed : std::runtime_error {
  Pressed() : std::runtime_error("a key was pressed") {}
};

// How many looks find nothing before one finds that the key was pressed; negative: nobody presses it.
std::atomic<int> looks_until_pressed{-1};

vdev::Interruption look() {
  if (looks_until_pressed.load() < 0 || looks_until_pressed.fetch_sub(1) > 0) return {};
  return {std::make_exception_ptr(Pressed()), "Pressed"};
}

/// The key is pressed at the `count`-th look of a wait, once.
void press_at_look(int count) {
  vdev::set_interruption_source(&look);
  looks_until_pressed.store(count - 1);
}

/// Opens a gate when it is told, as a communicator that is aborted ends its collective.
class Told final : public vdev::Interruptible {
 public:
  explicit Told(Gate* gate = nullptr) : gate_(gate) {}
  void interrupt(const std::string& reason) noexcept override {
    reason_ = reason;
    ++times;
    if (gate_) gate_->open();
  }
  const std::string& reason() const { return reason_; }
  std::atomic<int> times{0};

 private:
  Gate* gate_;
  std::string reason_;
};

std::shared_ptr<Stream> make_stream() {
  return std::make_shared<Stream>(-1, 7, 0, "test");
}

/// A task that runs on the worker, and has begun.
void occupy(Stream& stream, Gate& gate) {
  std::atomic<bool> begun{false};
  stream.enqueue([&] {
    begun = true;
    gate.pass();
  });
  CHECK(eventually([&] { return begun.load(); }));
}

}  // namespace

TEST(a_wait_is_interrupted_and_who_runs_there_is_told) {
  auto stream = make_stream();
  auto told = std::make_shared<Told>();
  stream->queue()->add_interruptible(told);
  stream->queue()->add_interruptible(told);
  Gate gate;
  occupy(*stream, gate);
  std::atomic<int> ran{0};
  stream->enqueue([&] { ++ran; });
  const Event point = stream->record();
  for (int round = 1; round <= 3; ++round) {
    press_at_look(round);
    CHECK_THROWS(stream->synchronize(), Pressed);
    CHECK_EQ(told->times.load(), 3 * round - 2);
    press_at_look(1);
    CHECK_THROWS(point.wait(), Pressed);
    CHECK_EQ(told->times.load(), 3 * round - 1);
    press_at_look(1);
    CHECK(!point.wait_for(kMinute));
    CHECK_THROWS(vdev::raise_interruption(), Pressed);
    CHECK_EQ(told->times.load(), 3 * round);
  }
  CHECK_EQ(told->reason(), "interrupted by Pressed");
  CHECK(!vdev::interruption_pending());
  CHECK_EQ(ran.load(), 0);
  gate.open();
  stream->synchronize();
  CHECK_EQ(ran.load(), 1);
}

TEST(an_interruption_reaches_the_stream_that_is_waited_for) {
  Gate gate;
  auto first = make_stream(), second = make_stream(), third = make_stream();
  auto told_first = std::make_shared<Told>(), told_third = std::make_shared<Told>();
  first->queue()->add_interruptible(told_first);
  third->queue()->add_interruptible(told_third);
  occupy(*third, gate);
  second->wait(third->record());
  first->wait(second->record());
  std::atomic<bool> first_ran{false}, third_ran{false};
  third->enqueue([&] { third_ran = true; });
  first->enqueue([&] { first_ran = true; }, vdev::Start::kByWaiter);
  press_at_look(1);
  CHECK_THROWS(first->synchronize(), Pressed);  // helping: it is inside the first stream's wait
  CHECK_EQ(told_first->times.load(), 0);
  CHECK_EQ(told_third->times.load(), 1);
  CHECK(!first_ran && !third_ran);
  // The wait is still in the queue, for whoever comes next.
  std::thread helper([&] { first->synchronize(); });
  gate.open();
  helper.join();
  CHECK(first_ran);
  third->synchronize();
  CHECK(third_ran);
}

TEST(a_task_that_sees_it_fails_as_any_other) {
  auto stream = make_stream();
  auto told = std::make_shared<Told>();
  stream->queue()->add_interruptible(told);
  stream->enqueue(
      [] {
        while (!vdev::interrupted()) std::this_thread::yield();
        vdev::raise_interruption();  // not here: it would be the stream's error
        throw std::logic_error("the operation was aborted");
      },
      vdev::Start::kByWaiter);
  press_at_look(2);
  CHECK_THROWS(stream->synchronize(), Pressed);
  CHECK_EQ(told->times.load(), 1);
  CHECK_THROWS(stream->synchronize(), std::logic_error);
  vdev::program_errors().settle();
  stream->synchronize();
}

TEST(a_promise_is_interrupted) {
  Promise promise("promise");
  auto told = std::make_shared<Told>();
  promise.add_interruptible(told);
  auto stream = make_stream();
  stream->wait(promise.event());
  for (int round = 1; round <= 2; ++round) {
    press_at_look(1);
    CHECK_THROWS(promise.event().wait(), Pressed);
    press_at_look(1);
    CHECK_THROWS(stream->synchronize(), Pressed);
    CHECK_EQ(told->times.load(), 2 * round);
  }
  promise.fulfil(nullptr);
  stream->synchronize();
}

TEST(the_end_of_a_stream_is_waited_for_all_the_same) {
  Gate gate;
  auto told = std::make_shared<Told>(&gate);
  std::atomic<int> ran{0};
  {
    auto stream = make_stream();
    stream->queue()->add_interruptible(told);
    occupy(*stream, gate);
    stream->enqueue([&] { ++ran; });
    press_at_look(2);
  }
  CHECK_EQ(ran.load(), 1);
  CHECK(told->times.load() >= 1);
  CHECK(vdev::interruption_pending());  // to be raised by the next wait
  CHECK_THROWS(vdev::raise_interruption(), Pressed);
}

TEST(other_threads_are_not_interrupted) {
  Gate gate;
  auto stream = make_stream();
  auto told = std::make_shared<Told>();
  stream->queue()->add_interruptible(told);
  occupy(*stream, gate);
  press_at_look(1);
  std::atomic<bool> interruptible{true};
  std::thread other([&] {
    interruptible = vdev::interruptible();
    stream->synchronize();
  });
  std::this_thread::sleep_for(3 * base::kInterruptionPeriod);
  gate.open();
  other.join();
  CHECK(!interruptible);
  CHECK_EQ(told->times.load(), 0);
  CHECK_EQ(looks_until_pressed.load(), 0);  // nobody has looked
  looks_until_pressed = -1;
}

TEST(who_is_gone_is_not_told) {
  Gate gate;
  auto stream = make_stream();
  stream->queue()->add_interruptible(std::make_shared<Told>());
  occupy(*stream, gate);
  press_at_look(1);
  CHECK_THROWS(stream->synchronize(), Pressed);
  gate.open();
  stream->synchronize();
}

TEST_MAIN
