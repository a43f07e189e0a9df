// Failures: what every synchronisation raises until the owner is dealt with.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::Event;
using vdev::FailureOwner;
using vdev::Promise;
using vdev::Stream;

namespace {

using Owner = std::shared_ptr<FailureOwner>;

std::shared_ptr<Stream> make() {
  return std::make_shared<Stream>(-1, 7, 0, "test");
}

vdev::Task failing(const Owner& owner, const char* text = "boom") {
  return vdev::task_without_memory(
      [=] { vdev::report_failure(owner->fail(std::make_exception_ptr(std::runtime_error(text)))); });
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

std::string synchronize_error(Stream& stream) {
  return error_of([&] { stream.synchronize(); });
}

std::string reading_error(Stream& stream) {
  return error_of([&] { stream.synchronize_before_reading(); });
}

const std::string kNone, kBoom = "boom";

}  // namespace

TEST(it_is_raised_by_every_synchronisation_until_it_is_dealt_with) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  int ran = 0;
  stream->enqueue(failing(owner));
  stream->enqueue(vdev::task_without_memory([&] { ++ran; }));
  const Event point = stream->record();
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(reading_error(*stream), kNone);  // who asks for its memory is not charged
    CHECK_EQ(synchronize_error(*stream), kBoom);
    CHECK_EQ(error_of([&] { point.synchronize(); }), kBoom);
  }
  CHECK_EQ(ran, 1);  // a task behind it runs
  owner->settle();
  CHECK_EQ(synchronize_error(*stream), kNone);
  CHECK_EQ(error_of([&] { point.synchronize(); }), kNone);
  // The owner goes on, and may fail again.
  stream->enqueue(failing(owner, "again"));
  CHECK_EQ(synchronize_error(*stream), std::string("again"));
  owner->close();
  CHECK_EQ(synchronize_error(*stream), kNone);
}

TEST(no_thread_uses_it_up) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  stream->enqueue(failing(owner));
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) raised += synchronize_error(*stream) == kBoom;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(raised.load(), 200);
}

TEST(streams_and_promises_hand_it_on) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto a = make(), b = make(), c = make();
  a->enqueue(failing(owner));
  b->wait(a->record());
  const Event point = b->record();
  CHECK_EQ(synchronize_error(*b), kBoom);
  CHECK_EQ(synchronize_error(*b), kBoom);
  CHECK_EQ(synchronize_error(*a), kBoom);
  CHECK_EQ(error_of([&] { point.synchronize(); }), kBoom);
  Promise promise("message");
  c->wait(promise.event());
  promise.fulfil(owner->fail(std::make_exception_ptr(std::runtime_error("lost"))));
  CHECK_EQ(error_of([&] { promise.event().synchronize(); }), std::string("lost"));
  CHECK_EQ(synchronize_error(*c), std::string("lost"));
  owner->settle();
  for (const auto& stream : {a, b, c}) CHECK_EQ(synchronize_error(*stream), kNone);
  // Who waits for the old points now has nothing to hear of.
  const auto d = make();
  d->wait(point);
  CHECK_EQ(synchronize_error(*d), kNone);
}

TEST(owners_are_dealt_with_one_by_one) {
  const auto one = std::make_shared<FailureOwner>(), two = std::make_shared<FailureOwner>();
  const auto stream = make();
  for (int i = 0; i < 3; ++i) {
    stream->enqueue(failing(one, "one"));
    stream->enqueue(failing(two, "two"));
  }
  CHECK_EQ(synchronize_error(*stream), std::string("one"));
  one->close();
  CHECK_EQ(synchronize_error(*stream), std::string("two"));
  two->close();
  CHECK_EQ(synchronize_error(*stream), kNone);
}

TEST(an_error_of_unknown_memory_is_raised_beside_it) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  stream->enqueue(failing(owner));
  stream->enqueue(vdev::task_without_memory([] {
    vdev::report_failure(
        vdev::program_errors().fail_unknown(std::make_exception_ptr(std::runtime_error("host function"))));
  }));
  // A reader cannot know what the host function should have written.
  CHECK_EQ(reading_error(*stream), std::string("host function"));
  CHECK_EQ(reading_error(*stream), std::string("host function"));
  CHECK_EQ(synchronize_error(*stream), kBoom);
  vdev::program_errors().settle();
  CHECK_EQ(reading_error(*stream), kNone);
  CHECK_EQ(synchronize_error(*stream), kBoom);
}

namespace {

/// Copies a number, as kernels do: it looks at what it reads, and spoils what it does not write.
struct Copy final : vdev::TaskBody {
  Copy(const int* f, int* t) : from(f), to(t) {}
  void run() override {
    if (from == nullptr) throw std::runtime_error("kernel");
    if (const auto failure = vdev::spoiled_memory().find(from, sizeof *from))
      return vdev::give_up_part(*this, failure);
    *to = *from;
    vdev::spoiled_memory().renew(to, sizeof *to);
  }
  void give_up(const vdev::FailurePtr& failure) override {
    vdev::spoiled_memory().spoil(to, sizeof *to, failure);
  }
  const int* const from;
  int* const to;
};

vdev::Task copy(const int* from, int* to) {
  return vdev::Task(std::make_shared<Copy>(from, to));
}

}  // namespace

TEST(an_error_of_a_kernel_stands_while_anything_depends_on_it) {
  const auto stream = make(), other = make();
  int healthy = 5, a = 0, b = 0, c = 0, d = 0;
  stream->enqueue(copy(nullptr, &a));
  stream->enqueue(copy(&a, &b));
  stream->enqueue(copy(&healthy, &c));
  other->wait(stream->record());
  other->enqueue(copy(&b, &d));
  CHECK_EQ(synchronize_error(*other), std::string("kernel"));
  CHECK_EQ(synchronize_error(*stream), std::string("kernel"));
  CHECK_EQ(c, 5);
  for (const int* each : {&a, &b, &d}) CHECK(vdev::spoiled_memory().find(each, sizeof *each));
  for (int* each : {&a, &b, &d}) {
    CHECK_EQ(synchronize_error(*stream), std::string("kernel"));
    CHECK_EQ(reading_error(*stream), kNone);  // raised before, and readers ask for their memory
    stream->enqueue(copy(&healthy, each));
  }
  stream->drain();
  CHECK_EQ(synchronize_error(*stream), kNone);
  CHECK_EQ(synchronize_error(*other), kNone);
  CHECK(!vdev::SpoiledMemory::any());
  CHECK_EQ(d, 5);
}

TEST(an_error_on_which_nothing_depends_is_raised_once) {
  const auto stream = make();
  int healthy = 5, a = 0;
  for (const bool reads : {false, true}) {
    stream->enqueue(copy(nullptr, &a));
    stream->enqueue(copy(&healthy, &a));
    CHECK_EQ(reads ? reading_error(*stream) : synchronize_error(*stream), std::string("kernel"));
    CHECK_EQ(reading_error(*stream), kNone);
    CHECK_EQ(synchronize_error(*stream), kNone);
  }
}

TEST(clearing_makes_everything_readable) {
  const auto stream = make();
  int a = 0, b = 0;
  stream->enqueue(copy(nullptr, &a));
  stream->enqueue(copy(&a, &b));
  CHECK_EQ(synchronize_error(*stream), std::string("kernel"));
  CHECK_EQ(vdev::program_errors().standing().size(), std::size_t{1});
  vdev::program_errors().settle();
  CHECK_EQ(synchronize_error(*stream), kNone);
  CHECK(!vdev::SpoiledMemory::any());
  CHECK(vdev::program_errors().standing().empty());
}

TEST(a_task_sees_what_failed_before_it) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  bool before = true, behind = false, later = true;
  const auto look = [&](bool& seen) {
    stream->enqueue(
        vdev::task_without_memory([&seen] { seen = vdev::failure_before_this_task() != nullptr; }));
  };
  look(before);
  stream->enqueue(failing(owner));
  look(behind);
  stream->drain();
  owner->settle();
  look(later);
  stream->drain();
  CHECK(!before);
  CHECK(behind);
  CHECK(!later);
  CHECK(!vdev::failure_before_this_task());  // outside of any task
}

TEST(a_call_that_began_before_it_was_dealt_with_still_raises_it) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  const auto& queue = stream->queue();
  const auto before = vdev::error_epoch();
  stream->enqueue(failing(owner));
  stream->drain();
  CHECK_EQ(error_of([&] { queue->failures().raise_before_reading(before); }), kNone);
  owner->close();  // as another thread does while this one waits
  CHECK_EQ(error_of([&] { queue->failures().raise_before_reading(before); }), kBoom);
  CHECK_EQ(error_of([&] { queue->failures().raise_one_for_all(before); }), kBoom);
  CHECK_EQ(reading_error(*stream), kNone);
  CHECK_EQ(synchronize_error(*stream), kNone);
}

TEST(after_the_close_streams_raise_a_failure_once) {
  const auto owner = std::make_shared<FailureOwner>();
  const auto stream = make();
  owner->close();
  stream->enqueue(failing(owner));
  CHECK_EQ(synchronize_error(*stream), kBoom);
  CHECK_EQ(synchronize_error(*stream), kNone);
}

TEST_MAIN
