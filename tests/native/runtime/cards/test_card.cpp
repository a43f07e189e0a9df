// Cards: the table, streams by id, thread-local currents, fork, shutdown.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using namespace vdev;

namespace {

/// Runs `body` in a forked child; its exit status, or -1 when it had to be killed after a minute.
int in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int status = 101;
    try {
      status = body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    // The sanitizers' own locks, which their exit takes, may be held by a thread that the fork left behind.
    if (in_bad_fork()) _exit(status);
#endif
    std::exit(status);  // with destructors: they must not hang
  }
  int status = 0;
  const bool ended = eventually([&] { return waitpid(child, &status, WNOHANG) == child; });
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Every test works in a child of its own, since cards cannot be unmade. The status is 0 for a pass.
int passes(const std::function<void()>& body) {
  return in_child([&] {
    try {
      body();
      return 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 1;
    }
  });
}

}  // namespace

TEST(counting_makes_nothing) {
  CHECK_EQ(passes([] {
             CHECK_EQ(card_count(), 4);
             CHECK_EQ(current_card(), 0);
             CHECK_EQ(set_current_card(3), 0);
             CHECK_EQ(current_card(), 3);
             CHECK_EQ(current_stream_id(3), std::int64_t{0});
             CHECK_EQ(set_current_stream(3, 0), std::int64_t{0});
             int local = 0;
             CHECK_EQ(card_of(&local), -1);
             CHECK(!any_card_used());
             CHECK(!card_used(3));
             CHECK(!in_bad_fork());
           }),
           0);
}

TEST(a_card_is_made_once_and_knows_itself) {
  CHECK_EQ(passes([] {
             std::vector<std::thread> threads;
             std::vector<Card*> seen(8);
             for (int i = 0; i < 8; ++i) threads.emplace_back([&seen, i] { seen[i] = &card(2); });
             for (auto& thread : threads) thread.join();
             for (auto* c : seen) CHECK(c == seen[0]);
             Card& c = card(2);
             CHECK_EQ(c.index(), 2);
             CHECK_EQ(c.properties().physical_index, 5);  // VDEV_VISIBLE_DEVICES=7,6,5,0
             CHECK_EQ(c.properties().total_memory, std::size_t{64} << 20);
             CHECK(c.properties().multi_processor_count >= 1);
             CHECK(any_card_used());
             CHECK(card_used(2));
             CHECK(!card_used(0));
             auto* p = c.allocator().allocate(1000, c.default_stream());
             CHECK_EQ(card_of(p), 2);
             CHECK_EQ(card_of(p + 999), 2);
             auto* q = card(1).allocator().allocate(1000, card(1).default_stream());
             CHECK_EQ(card_of(q), 1);
             CHECK_EQ(card_of(&c), -1);
             CHECK_EQ(card_of(nullptr), -1);
             c.allocator().free(p);
             card(1).allocator().free(q);
           }),
           0);
}

TEST(bad_indices_and_ids) {
  CHECK_EQ(passes([] {
             CHECK_THROWS(card(-1), InvalidArgument);
             CHECK_THROWS(card(4), InvalidArgument);
             CHECK_THROWS(card(1000), InvalidArgument);
             CHECK_THROWS(set_current_card(4), InvalidArgument);
             CHECK_THROWS(set_current_card(-1), InvalidArgument);
             CHECK_THROWS(current_stream(9), InvalidArgument);
             CHECK_THROWS(set_current_stream(-3, 0), InvalidArgument);
             CHECK_THROWS(card(0).stream(12345), InvalidArgument);
             CHECK_THROWS(card(0).stream(-1), InvalidArgument);
             CHECK_THROWS(set_current_stream(0, 12345), InvalidArgument);
             CHECK_EQ(current_stream_id(0), std::int64_t{0});
             CHECK_EQ(current_stream_id(-1), std::int64_t{0});
             CHECK_EQ(current_stream_id(99), std::int64_t{0});
           }),
           0);
}

TEST(a_bad_variable_shows_when_a_card_is_used) {
  CHECK_EQ(passes([] {
             setenv("VDEV_MEMORY", "lots", 1);
             CHECK_EQ(card_count(), 0);
             bool named = false;
             try {
               card(0);
             } catch (const InvalidArgument& e) {
               named = std::string(e.what()).find("VDEV_MEMORY='lots'") != std::string::npos;
             }
             CHECK(named);
           }),
           0);
}

TEST(pool_streams_come_in_turn) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             std::set<std::int64_t> low, high;
             for (int i = 0; i < 32; ++i) low.insert(c.pool_stream(0)->id());
             for (int i = 0; i < 32; ++i) {
               bool made = false;
               const auto stream = c.pool_stream(-1, &made);
               CHECK(made);
               CHECK_EQ(stream->priority(), -1);
               high.insert(stream->id());
             }
             CHECK_EQ(low.size(), std::size_t{32});
             CHECK_EQ(high.size(), std::size_t{32});
             for (const auto id : high) CHECK(!low.count(id) && id != 0);
             bool made = true;
             CHECK(low.count(c.pool_stream(0, &made)->id()));  // from the start again
             CHECK(!made);
             for (const auto id : low) CHECK_EQ(c.stream(id)->id(), id);
             CHECK(c.stream(*low.begin()) == c.stream(*low.begin()));
             CHECK_EQ(c.stream(0)->id(), std::int64_t{0});
             CHECK(c.stream(0) == c.default_stream());
           }),
           0);
}

TEST(a_new_stream_leaves_the_table_with_its_last_pointer) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             auto stream = c.new_stream(0, "mine");
             const auto id = stream->id();
             CHECK_EQ(stream->name(), std::string("mine"));
             CHECK(c.stream(id) == stream);
             CHECK(c.new_stream(0, "")->id() != id);
             stream.reset();
             CHECK_THROWS(c.stream(id), InvalidArgument);
           }),
           0);
}

TEST(currents_are_of_the_thread_and_of_the_card) {
  CHECK_EQ(passes([] {
             Card& c = card(1);
             const auto stream = c.pool_stream(0);
             CHECK_EQ(set_current_stream(1, stream->id()), std::int64_t{0});
             CHECK(current_stream(1) == stream);
             CHECK_EQ(current_stream_id(1), stream->id());
             CHECK(current_stream(0) == card(0).default_stream());
             set_current_card(2);
             std::thread([&] {
               CHECK_EQ(current_card(), 0);
               CHECK(current_stream(1) == c.default_stream());
               set_current_card(1);
             }).join();
             CHECK_EQ(current_card(), 2);
             CHECK_EQ(set_current_stream(1, 0), stream->id());
             CHECK(current_stream(1) == c.default_stream());
           }),
           0);
}

TEST(a_current_stream_stays_alive) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             auto stream = c.new_stream(0, "mine");
             const auto id = stream->id();
             set_current_stream(0, id);
             stream.reset();
             int ran = 0;
             current_stream(0)->enqueue([&] { ++ran; });
             set_current_stream(0, 0);  // destroys it, which runs what is queued
             CHECK_EQ(ran, 1);
             CHECK_THROWS(c.stream(id), InvalidArgument);
           }),
           0);
}

TEST(synchronize_drains_every_stream_and_raises_the_first_error) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             std::atomic<int> ran{0};
             std::vector<std::shared_ptr<Stream>> streams{c.default_stream(), c.pool_stream(0),
                                                          c.pool_stream(-1), c.new_stream(0, "mine")};
             for (auto& stream : streams) stream->enqueue([&] { ++ran; });
             streams[1]->enqueue([] { throw CardError("one"); });
             streams[3]->enqueue([] { throw CardError("two"); });
             for (int i = 0; i < 2; ++i) {
               std::string text;
               try {
                 c.synchronize();
               } catch (const CardError& e) {
                 text = e.what();
               }
               CHECK_EQ(text, std::string("one"));
               CHECK_EQ(ran.load(), 4);
             }
             vdev::program_errors().settle();
             c.synchronize();
           }),
           0);
}

TEST(synchronize_waits_for_points_of_no_stream_and_raises_their_failures) {
  CHECK_EQ(passes([] {
             auto& c = card(0);
             std::vector<std::unique_ptr<Promise>> promises;
             for (int i = 0; i < 100; ++i) {  // so many that those which are reached are forgotten in between
               promises.push_back(std::make_unique<Promise>("message"));
               c.also_wait_for(promises.back()->event());
               if (i % 3 != 0) promises.back()->fulfil(nullptr);
             }
             std::atomic<bool> done{false};
             std::thread other([&] {
               c.synchronize();
               done = true;
             });
             const auto owner = std::make_shared<vdev::FailureOwner>();
             for (int i = 0; i < 99; i += 3) promises[static_cast<std::size_t>(i)]->fulfil(nullptr);
             std::this_thread::sleep_for(std::chrono::milliseconds(20));
             CHECK(!done);
             promises.back()->fulfil(nullptr);
             other.join();

             Promise failing("message"), late("message");
             c.also_wait_for(failing.event());
             failing.fulfil(owner->fail(std::make_exception_ptr(CardError("no peer"))));
             CHECK_THROWS(c.synchronize(), CardError);
             CHECK_THROWS(c.synchronize(), CardError);  // it stands until the owner deals with it
             owner->close();
             c.synchronize();
             c.also_wait_for(late.event());
             late.fulfil(owner->fail(std::make_exception_ptr(CardError("no group"))));
             c.synchronize();  // the owner was closed before, so nobody is told
           }),
           0);
}

TEST(streams_of_high_priority_run_first) {
  CHECK_EQ(passes([] {
             // No worker takes the tasks before the thread that waits.
             stop_deferred_task_timer();
             for (const bool whole_card : {true, false}) {
               const std::vector<std::shared_ptr<Stream>> streams{
                   card(0).default_stream(), card(0).pool_stream(0), card(0).pool_stream(-1)};
               std::vector<int> order;
               for (int i = 0; i < 3; ++i)
                 streams[i]->enqueue([&order, i] { order.push_back(i); }, Start::kByWaiter);
               if (whole_card)
                 card(0).synchronize();
               else
                 card(0).drain_program_streams();
               CHECK(order == std::vector<int>({2, 0, 1}));
             }
           }),
           0);
}

TEST(a_forked_child_of_a_user_is_refused_at_first_use) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             auto stream = c.new_stream(0, "mine");
             auto* p = c.allocator().allocate(4096, stream);
             c.allocator().record_stream(p, c.default_stream());
             auto gate = std::make_shared<Gate>();
             stream->enqueue([gate] { gate->pass(); });  // fork with a busy worker
             const Event event = stream->record();
             CHECK_EQ(passes([&] {
                        CHECK(in_bad_fork());
                        CHECK_EQ(card_count(), 4);
                        CHECK(!any_card_used());
                        CHECK(!card_used(0));
                        CHECK_EQ(card_of(p), 0);
                        CHECK_EQ(current_card(), 0);
                        CHECK_EQ(set_current_card(1), 0);
                        bool named = false;
                        try {
                          card(0);
                        } catch (const BadFork& e) {
                          named = std::string(e.what()) ==
                                  "Cannot re-initialize vdev in forked subprocess. To use vdev with "
                                  "multiprocessing, you must use the 'spawn' start method";
                        }
                        CHECK(named);
                        CHECK_THROWS(card(1), BadFork);
                        CHECK_THROWS(current_stream(0), BadFork);
                        CHECK_THROWS(set_current_stream(0, 1), BadFork);
                        CHECK_THROWS(stream->enqueue([] {}), BadFork);
                        CHECK_THROWS(stream->record(), BadFork);
                        CHECK_THROWS(stream->synchronize(), BadFork);
                        CHECK_THROWS(event.wait(), BadFork);
                        CHECK(!event.reached());
                        CHECK(!event.wait_for(1000));
                        CHECK_THROWS(c.allocator().allocate(1, stream), BadFork);
                        stream->drain();
                        stream->idle();
                        c.allocator().free(p);
                        shutdown();
                        stream.reset();  // the last pointer of this process
                        // A grandchild is no better off.
                        CHECK_EQ(passes([] { CHECK_THROWS(card(0), BadFork); }), 0);
                      }),
                      0);
             gate->open();
             stream->synchronize();
             c.allocator().free(p);
           }),
           0);
}

TEST(a_forked_child_of_a_process_without_cards_is_free) {
  CHECK_EQ(passes([] {
             CHECK(!in_bad_fork());
             int ran = 0;
             card(0).default_stream()->enqueue([&] { ++ran; });
             card(0).synchronize();
             CHECK_EQ(ran, 1);
             CHECK(any_card_used());
           }),
           0);
}

TEST(shutdown_drops_queues_and_leaves_stuck_tasks_behind) {
  CHECK_EQ(passes([] {
             Card& c = card(0);
             auto gate = std::make_shared<Gate>();
             auto entered = std::make_shared<Gate>();
             std::atomic<int> ran{0};
             c.default_stream()->enqueue([gate, entered] {
               entered->open();
               gate->pass();
             });
             entered->pass();
             c.default_stream()->enqueue([&] { ++ran; });
             const auto pooled = c.pool_stream(0);
             pooled->enqueue([&] { ++ran; });
             pooled->synchronize();
             const int before = ran;
             shutdown();
             shutdown();
             gate->open();
             c.default_stream()->drain();
             CHECK_EQ(ran.load(), before);
             // What comes later is run by whoever waits for it.
             // What was given up is not taken for done.
             CHECK_THROWS(c.default_stream()->synchronize(), CardError);
             vdev::program_errors().settle();
             c.default_stream()->enqueue([&] { ++ran; });
             c.default_stream()->synchronize();
             CHECK_EQ(ran.load(), before + 1);
           }),
           0);
}

TEST(leaving_with_queued_work_does_not_hang) {
  CHECK_EQ(in_child([] {
             card(0).default_stream()->enqueue([] {});
             card(0).pool_stream(0)->wait(card(0).default_stream()->record());
             return 0;
           }),
           0);
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "8", 1);
  setenv("VDEV_VISIBLE_DEVICES", "7,6,5,0", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_LAUNCH_BLOCKING");
  return check::run(argc, argv);
}
