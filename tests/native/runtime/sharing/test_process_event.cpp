// Events that several processes record and wait for.
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/process.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/process_event.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/processes.hpp"
#include "tests/native/runtime/suppressions.hpp"

using namespace vdev;
using scene::Stage;

namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const CardError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(another_process_waits_for_a_record) {
  scene::play({
      {[](Stage& stage) {
        Stream stream(-1, 0, 0, "recorder");
        Gate gate;
        auto event = ProcessEvent::make();
        CHECK(event->reached());
        stream.enqueue([&] { gate.pass(); });
        CHECK_EQ(event->record(stream), std::uint64_t{1});
        CHECK(!event->reached());
        stage.tell(1, event->handle());
        CHECK_EQ(stage.hear(0), std::string("waits"));
        gate.open();
        CHECK_EQ(stage.hear(0), std::string("reached"));
        CHECK(event->reached());
        stream.synchronize();
      }},
      {[](Stage& stage) {
        auto event = ProcessEvent::open(stage.hear(1));
        CHECK(!event->reached());
        CHECK_EQ(event->last_record(), std::uint64_t{1});
        Stream stream(-1, 0, 0, "waiter");
        bool ran = false;
        stream.wait(event->point());
        stream.enqueue([&] { ran = true; });
        CHECK(!stream.idle());
        stage.tell(0, "waits");
        event->point().synchronize();
        stream.synchronize();
        CHECK(ran && event->reached());
        stage.tell(0, "reached");
      }},
  });
}

TEST(each_process_may_record_and_the_last_record_counts) {
  scene::play({
      {[](Stage& stage) {
        Stream stream(-1, 0, 0, "first");
        Gate gate;
        auto event = ProcessEvent::make();
        stage.tell(1, event->handle());
        stage.hear(0);  // the other process has recorded, and its stream is held back
        CHECK_EQ(event->last_record(), std::uint64_t{1});
        CHECK(!event->reached());
        stage.tell(1, "go on");
        event->point().synchronize();
        stream.enqueue([&] { gate.pass(); });
        CHECK_EQ(event->record(stream), std::uint64_t{2});
        CHECK(!event->reached());
        gate.open();
        stream.synchronize();
        CHECK(event->reached());
        stage.tell(1, "done");
      }},
      {[](Stage& stage) {
        Stream stream(-1, 0, 0, "second");
        Gate gate;
        auto event = ProcessEvent::open(stage.hear(1));
        stream.enqueue([&] { gate.pass(); });
        event->record(stream);
        stage.tell(0, "recorded");
        stage.hear(1);
        gate.open();
        stream.synchronize();
        stage.hear(1);
        CHECK(event->reached());
      }},
  });
}

TEST(the_death_of_the_recorder_is_an_error) {
  scene::play({
      {[](Stage& stage) {
         auto event = ProcessEvent::make();
         Stream stream(-1, 0, 0, "recorder");
         Gate gate;
         stream.enqueue([&] { gate.pass(); });
         event->record(stream);
         stage.tell(1, event->handle());
         stage.hear(0);
         scene::die();
       },
       true},
      {[](Stage& stage) {
        const std::string handle = stage.hear(1);
        auto event = ProcessEvent::open(handle);
        Stream stream(-1, 0, 0, "waiter");
        stream.wait(event->point());
        stage.tell(0, "die");
        CHECK(contains(refusal([&] { stream.synchronize(); }), "that has recorded it has ended"));
        CHECK(contains(refusal([&] { event->reached(); }), "that has recorded it has ended"));
        CHECK(contains(refusal([&] { event->point().synchronize(); }), "has ended"));
        CHECK(contains(refusal([&] { ProcessEvent::open(handle); }), "cannot be opened: the process"));
        vdev::program_errors().settle();
        event->record(stream);  // the event goes on with a record of a process that lives
        stream.synchronize();
        CHECK(event->reached());
      }},
  });
}

TEST(a_failed_stream_is_an_error_for_the_waiter) {
  scene::play({
      {[](Stage& stage) {
        auto event = ProcessEvent::make();
        Stream stream(-1, 0, 0, "recorder");
        stream.enqueue([] { throw CardError("broken"); });
        event->record(stream);
        stage.tell(1, event->handle());
        stage.hear(0);
        CHECK(contains(refusal([&] { stream.synchronize(); }), "broken"));
      }},
      {[](Stage& stage) {
        auto event = ProcessEvent::open(stage.hear(1));
        CHECK(contains(refusal([&] { event->point().synchronize(); }), "has failed before"));
        stage.tell(0, "seen");
      }},
  });
}

TEST(many_threads_wait_for_one_record) {
  scene::play({
      {[](Stage& stage) {
        auto event = ProcessEvent::make();
        Stream stream(-1, 0, 0, "recorder");
        stage.tell(1, event->handle());
        for (int round = 0; round < 50; ++round) {
          event->record(stream);
          stage.tell(1, "recorded");
          stage.hear(0);
        }
        stream.synchronize();
      }},
      {[](Stage& stage) {
        auto event = ProcessEvent::open(stage.hear(1));
        for (int round = 0; round < 50; ++round) {
          stage.hear(1);
          std::vector<std::thread> waiters;
          for (int i = 0; i < 3; ++i) waiters.emplace_back([&] { event->point().wait(); });
          for (auto& waiter : waiters) waiter.join();
          CHECK(event->reached());
          stage.tell(0, "next");
        }
      }},
  });
}

TEST(what_is_no_handle_of_an_event_is_refused) {
  CHECK_EQ(refusal([] { ProcessEvent::open("nonsense"); }),
           "An event of another process cannot be opened: its bytes name nothing of a card.");
  auto event = ProcessEvent::make();
  std::string handle = event->handle();
  handle.resize(handle.size() - 1);
  CHECK(contains(refusal([&] { ProcessEvent::open(handle); }), "cannot be opened"));
  const std::string of_one_that_is_gone = ProcessEvent::make()->handle();
  CHECK(contains(refusal([&] { ProcessEvent::open(of_one_that_is_gone); }),
                 "that owns it has ended or has given it up"));
  auto same = ProcessEvent::open(event->handle());
  Stream stream(-1, 0, 0, "recorder");
  same->record(stream);
  stream.synchronize();
  CHECK_EQ(event->last_record(), std::uint64_t{1});
  CHECK(event->reached());
}

TEST(a_process_may_open_an_event_again_and_again) {
  constexpr int kMoreThanThereArePlaces = 100;
  const auto event = ProcessEvent::make();
  Stream stream(-1, 0, 0, "recorder");
  for (int i = 0; i < kMoreThanThereArePlaces; ++i) {
    ProcessEvent::open(event->handle())->record(stream);
    stream.synchronize();
    CHECK(event->reached());
  }
}

TEST(a_process_is_known_by_its_birth) {
  const auto own = base::birth_of(getpid());
  CHECK(own != 0);
  CHECK_EQ(base::birth_of(getpid()), own);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t ended;
  CHECK_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  CHECK_EQ(base::birth_of(child), std::uint64_t{0});  // ended, and not noticed
  waitpid(child, nullptr, 0);
  CHECK_EQ(base::birth_of(child), std::uint64_t{0});
}

TEST_MAIN
