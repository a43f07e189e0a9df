// Capture of streams and replay, without torch.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<Stream> stream_named(const char* name) {
  return std::make_shared<Stream>(-1, 1, 0, name);
}

std::shared_ptr<Capture> begin(const std::shared_ptr<Stream>& stream,
                               CaptureMode mode = CaptureMode::kGlobal) {
  return Capture::begin(stream, mode, new_private_pool());
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(captured_tasks_run_at_each_replay_and_not_before) {
  auto s = stream_named("s");
  int count = 0;
  auto capture = begin(s);
  s->enqueue([&] { count = count * 10 + 1; });
  s->enqueue([&] { count = count * 10 + 2; });
  auto graph = capture->end();
  s->synchronize();
  CHECK_EQ(count, 0);
  CHECK_EQ(graph->size(), std::size_t{2});
  graph->replay(*s, nullptr);
  graph->replay(*s, nullptr);
  s->synchronize();
  CHECK_EQ(count, 1212);
}

TEST(what_was_queued_before_a_capture_runs_during_it) {
  auto s = stream_named("s");
  std::atomic<bool> ran{false};
  Gate gate;
  s->enqueue([&] {
    gate.pass();
    ran = true;
  });
  auto capture = begin(s);
  gate.open();
  CHECK(eventually([&] { return ran.load(); }));
  capture->end();
}

TEST(other_streams_join_and_are_joined_back) {
  auto a = stream_named("a"), b = stream_named("b"), c = stream_named("c");
  std::string order;
  auto capture = begin(a);
  a->enqueue([&] { order += "1"; });
  b->wait(a->record());
  c->wait(b->record());
  b->enqueue([&] { order += "2"; });
  a->enqueue([&] { order += "3"; });
  c->enqueue([&] { order += "4"; });
  b->wait(c->record());
  a->wait(b->record());
  auto graph = capture->end();
  for (auto& stream : {a, b, c}) stream->synchronize();  // ordinary streams again
  auto elsewhere = stream_named("elsewhere");
  graph->replay(*elsewhere, nullptr);
  elsewhere->synchronize();
  CHECK_EQ(order, std::string("1234"));
  CHECK(says(graph->as_dot(), "0 -> 3"));
}

TEST(work_that_is_not_joined_back_is_refused) {
  auto a = stream_named("a"), b = stream_named("b");
  auto capture = begin(a);
  b->wait(a->record());
  b->enqueue([] {});
  CHECK(says(error_of([&] { capture->end(); }), "capture of unjoined work"));
  b->enqueue([] {});
  b->synchronize();
  a->synchronize();
}

TEST(a_stream_that_joined_without_work_need_not_be_joined_back) {
  auto a = stream_named("a"), b = stream_named("b");
  auto capture = begin(a);
  a->enqueue([] {});
  b->wait(a->record());
  CHECK_EQ(capture->end()->size(), std::size_t{1});
}

TEST(refused_calls_invalidate_the_capture_and_leave_the_streams_usable) {
  const std::vector<std::function<void(Stream&)>> calls = {
      [](Stream& s) { s.synchronize(); },
      [](Stream& s) { s.synchronize_before_reading(); },
      [](Stream& s) { s.drain(); },
      [](Stream& s) { s.idle(); },
      [](Stream& s) { s.record().reached(); },
      [](Stream& s) { s.record().wait(); },
      [](Stream& s) { s.record().synchronize(); },
      [](Stream& s) { s.record().wait_for(1); },
      [](Stream&) { refuse_during_capture("the test"); },
  };
  for (const auto& call : calls) {
    auto s = stream_named("s");
    auto capture = begin(s);
    CHECK(says(error_of([&] { call(*s); }), "operation not permitted"));
    CHECK(says(error_of([&] { capture->end(); }), "invalidated"));
    bool ran = false;
    s->enqueue([&] { ran = true; });
    s->synchronize();
    CHECK(ran);
  }
}

TEST(modes_say_which_threads_may_do_harmless_things) {
  auto s = stream_named("s");
  const auto refused = [](bool elsewhere) {
    std::string text;
    const auto ask = [&] { text = error_of([] { refuse_during_capture("the test"); }); };
    if (elsewhere)
      std::thread(ask).join();
    else
      ask();
    return !text.empty();
  };
  for (const bool elsewhere : {false, true}) {
    auto global = begin(s, CaptureMode::kGlobal);
    CHECK(refused(elsewhere));
    CHECK_THROWS(global->end(), CardError);
    auto local = begin(s, CaptureMode::kThreadLocal);
    CHECK_EQ(refused(elsewhere), !elsewhere);
    CHECK_EQ(error_of([&] { local->end(); }).empty(), elsewhere);
    auto relaxed = begin(s, CaptureMode::kRelaxed);
    CHECK(!refused(elsewhere));
    relaxed->end();
  }
  CHECK(!refused(false));
}

TEST(captures_are_kept_apart) {
  auto a = stream_named("a"), b = stream_named("b"), c = stream_named("c");
  const Event before = c->record();
  auto first = begin(a, CaptureMode::kRelaxed), second = begin(b, CaptureMode::kRelaxed);
  CHECK_THROWS(begin(a), CardError);
  CHECK(says(error_of([&] { a->wait(b->record()); }), "merge"));
  CHECK_THROWS(first->end(), CardError);
  CHECK_THROWS(second->end(), CardError);
  CHECK_THROWS(second->end(), CardError);
  auto third = begin(a);
  CHECK(says(error_of([&] { a->wait(before); }), "uncaptured work"));
  const Event inside = a->record();
  CHECK(inside.captured());
  CHECK_THROWS(third->end(), CardError);
  CHECK(says(error_of([&] { c->wait(inside); }), "uncaptured work"));
  c->wait(Event());
  c->synchronize();
}

TEST(replays_come_one_after_the_other_on_whatever_streams) {
  auto a = stream_named("a"), b = stream_named("b");
  std::atomic<int> running{0};
  std::atomic<bool> overlapped{false};
  int count = 0;  // not atomic: the replays themselves keep it safe
  auto capture = begin(a);
  a->enqueue([&] {
    if (running.fetch_add(1) != 0) overlapped = true;
    ++count;
    std::this_thread::yield();
    running.fetch_sub(1);
  });
  auto graph = capture->end();
  for (int i = 0; i < 100; ++i) graph->replay(i % 2 ? *a : *b, nullptr);
  a->synchronize();
  b->synchronize();
  CHECK(!overlapped);
  CHECK_EQ(count, 100);
}

TEST(each_replay_begins_with_its_own_function) {
  auto s = stream_named("s");
  int given = 0, sum = 0;
  auto capture = begin(s);
  s->enqueue([&] { sum = sum * 10 + given; });
  auto graph = capture->end();
  for (int i = 1; i <= 3; ++i) graph->replay(*s, [&given, i] { given = i; });
  s->synchronize();
  CHECK_EQ(sum, 123);
}

TEST(behind_a_task_that_throws_no_task_of_the_replay_runs_whose_memory_is_unknown) {
  auto s = stream_named("s");
  bool fails = true;
  int after = 0, harmless = 0;
  auto capture = begin(s);
  s->enqueue([&] {
    if (fails) throw std::runtime_error("broken");
  });
  s->enqueue([&] { ++after; });
  s->enqueue(task_without_memory([&] { ++harmless; }));
  auto graph = capture->end();
  for (int i = 0; i < 2; ++i) {
    graph->replay(*s, nullptr);
    CHECK(says(error_of([&] { s->synchronize(); }), "broken"));
  }
  CHECK_EQ(after, 0);
  program_errors().settle();
  fails = false;
  graph->replay(*s, nullptr);
  s->synchronize();
  CHECK_EQ(after, 1);
  CHECK_EQ(harmless, 1);
}

namespace {

/// Writes a number, and spoils it when it cannot.
struct Writer final : TaskBody {
  explicit Writer(int* t, bool* f = nullptr) : to(t), fails(f) {}
  void run() override {
    if (fails != nullptr && *fails) throw std::runtime_error("cannot write");
    ++*to;
    spoiled_memory().renew(to, sizeof *to);
  }
  void give_up(const FailurePtr& failure) override { spoiled_memory().spoil(to, sizeof *to, failure); }
  int* const to;
  bool* const fails;
};

bool is_spoiled(const int& number) {
  return spoiled_memory().find(&number, sizeof number) != nullptr;
}

}  // namespace

TEST(each_task_of_a_replay_spoils_what_it_does_not_write) {
  auto s = stream_named("s");
  bool fails = false, stops = false;
  int first = 0, second = 0, third = 0;
  auto capture = begin(s);
  s->enqueue(Task(std::make_shared<Writer>(&first, &fails)));
  s->enqueue(Task(std::make_shared<Writer>(&second)));
  s->enqueue([&] {
    if (stops) throw std::runtime_error("unknown");
  });
  s->enqueue(Task(std::make_shared<Writer>(&third)));
  auto graph = capture->end();
  fails = true;
  graph->replay(*s, nullptr);
  // The host function reads what nobody knows, so it does not run, and neither does what follows it.
  CHECK(says(error_of([&] { s->synchronize(); }), "cannot write"));
  CHECK(is_spoiled(first) && !is_spoiled(second) && is_spoiled(third));
  CHECK_EQ(second, 1);
  program_errors().settle();
  fails = false;
  graph->replay(*s, nullptr);
  s->synchronize();
  CHECK(!is_spoiled(first) && !is_spoiled(second) && !is_spoiled(third));
  stops = true;
  graph->replay(*s, nullptr);
  CHECK(says(error_of([&] { s->synchronize(); }), "unknown"));
  CHECK(!is_spoiled(first) && !is_spoiled(second) && is_spoiled(third));
  // A replay that does not run at all spoils everything, and one that is abandoned as well.
  program_errors().settle();
  s->enqueue([] { throw std::runtime_error("before"); });
  graph->replay(*s, nullptr);
  CHECK(says(error_of([&] { s->synchronize(); }), "before"));
  CHECK(is_spoiled(first) && is_spoiled(second) && is_spoiled(third));
  program_errors().settle();
  CHECK(!SpoiledMemory::any());
  Gate gate;
  s->enqueue([&] { gate.pass(); });
  graph->replay(*s, nullptr);
  s->abandon(std::make_exception_ptr(std::runtime_error("the end")));
  gate.open();
  CHECK(says(error_of([&] { s->synchronize(); }), "the end"));
  CHECK(is_spoiled(first) && is_spoiled(second) && is_spoiled(third));
  program_errors().settle();
}

TEST(a_failure_in_a_replay_is_seen_by_the_tasks_behind_it) {
  auto s = stream_named("s");
  auto owner = std::make_shared<FailureOwner>();
  bool fails = true, seen = false;
  auto capture = begin(s);
  s->enqueue(task_without_memory([&] {
    if (fails) report_failure(owner->fail(std::make_exception_ptr(std::runtime_error("lost"))));
  }));
  s->enqueue(task_without_memory([&] { seen = failure_before_this_task() != nullptr; }));
  auto graph = capture->end();
  graph->replay(*s, nullptr);
  CHECK(says(error_of([&] { s->synchronize(); }), "lost"));
  CHECK(seen);
  owner->settle();
  fails = false;
  graph->replay(*s, nullptr);
  s->synchronize();
  CHECK(!seen);
}

TEST(a_queued_replay_keeps_the_graph) {
  auto s = stream_named("s");
  auto value = std::make_shared<int>(0);
  Gate gate;
  auto capture = begin(s);
  s->enqueue([value] { ++*value; });
  auto graph = capture->end();
  capture.reset();
  s->enqueue([&] { gate.pass(); });
  graph->replay(*s, nullptr);
  graph->replay(*s, nullptr);
  graph.reset();
  gate.open();
  s->synchronize();
  CHECK_EQ(*value, 2);
  CHECK_EQ(value.use_count(), 1L);
}

TEST(memory_of_a_capture_comes_from_its_pool_and_stays_while_the_graph_lives) {
  Arena arena("test", 256 * kMiB);
  CachingAllocator allocator(arena, 0);
  auto s = stream_named("s"), other = stream_named("other");
  auto* ordinary = allocator.allocate(3 * kMiB, s);
  allocator.free(ordinary);
  auto capture = begin(s);
  auto* first = allocator.allocate(3 * kMiB, s);
  CHECK(first != ordinary);
  s->enqueue([=] { std::memset(first, 1, 3 * kMiB); });
  other->wait(s->record());
  allocator.record_stream(first, other);
  allocator.free(first);
  CHECK(allocator.allocate(3 * kMiB, s) == first);  // reused within the capture
  s->wait(other->record());
  auto graph = capture->end();
  capture.reset();
  allocator.free(first);
  CHECK(allocator.allocate(3 * kMiB, s) == ordinary);
  allocator.free(ordinary);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes.current, static_cast<std::int64_t>(20 * kMiB));
  Gate gate;
  other->enqueue([&] { gate.pass(); });
  graph->replay(*other, nullptr);
  graph.reset();
  allocator.empty_cache();  // the queued replay keeps the pool
  CHECK_EQ(allocator.stats().reserved_bytes.current, static_cast<std::int64_t>(20 * kMiB));
  gate.open();
  other->synchronize();
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes.current, std::int64_t{0});
}

TEST(a_capture_that_fails_gives_its_memory_back) {
  Arena arena("test", 256 * kMiB);
  CachingAllocator allocator(arena, 0);
  auto s = stream_named("s");
  auto capture = begin(s);
  allocator.free(allocator.allocate(3 * kMiB, s));
  CHECK_THROWS(s->synchronize(), CardError);
  CHECK_THROWS(capture->end(), CardError);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes.current, std::int64_t{0});
}

namespace {

struct CountingUser : ReplayUser {
  struct Turn : ReplayTurn {
    explicit Turn(CountingUser& u) : user(u) { ++user.begun; }
    ~Turn() override { ++user.ended; }
    void enqueued(const Event& end) noexcept override { user.last = end; }
    CountingUser& user;
  };
  std::unique_ptr<ReplayTurn> begin(Stream&) override { return std::make_unique<Turn>(*this); }
  int begun = 0, ended = 0;
  Event last;
};

}  // namespace

TEST(users_take_part_in_replays) {
  auto s = stream_named("s");
  auto user = std::make_shared<CountingUser>();
  auto capture = begin(s);
  capture->add_user(user);
  capture->add_user(user);
  s->enqueue([] {});
  auto graph = capture->end();
  graph->replay(*s, nullptr);
  user->last.wait();
  CHECK_EQ(user->begun, 1);
  CHECK_EQ(user->ended, 1);
  s->enqueue([] { throw std::runtime_error("broken"); });
  graph->replay(*s, nullptr);
  CHECK_THROWS(s->synchronize(), std::runtime_error);
  CHECK_EQ(user->ended, 2);
  program_errors().settle();
}

TEST(a_graph_is_not_replayed_into_a_capture) {
  auto s = stream_named("s");
  auto graph = [&] { return begin(s)->end(); }();
  auto capture = begin(s);
  CHECK_THROWS(graph->replay(*s, nullptr), CardError);
  CHECK_THROWS(capture->end(), CardError);
  graph->replay(*s, nullptr);
  s->synchronize();
}

TEST(threads_capture_replay_and_free_at_random) {
  Arena arena("test", 256 * kMiB);
  CachingAllocator allocator(arena, 0);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      auto s = stream_named("s"), side = stream_named("side");
      for (int round = 0; round < 50; ++round) {
        auto capture = begin(s, CaptureMode::kRelaxed);
        auto* block = allocator.allocate(4096, s);
        s->enqueue([=] { std::memset(block, t + 1, 4096); });
        side->wait(s->record());
        side->enqueue([=, &wrong] { wrong += block[4095] != static_cast<std::byte>(t + 1); });
        s->wait(side->record());
        allocator.free(block);
        auto graph = capture->end();
        graph->replay(*s, nullptr);
        graph->replay(*side, nullptr);
        graph.reset();
        if (round % 8 == 0) allocator.empty_cache();
      }
      s->synchronize();
      side->synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong, 0);
}

TEST_MAIN
