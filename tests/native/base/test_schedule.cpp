// Orders on demand: texts, equal orders of equal seeds, and that no thread is held up for ever.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <semaphore>
#include <set>

#include "tests/native/base/threads_of_schedule.hpp"
#include "tests/native/check.hpp"

namespace {

using namespace std::chrono_literals;

std::string random_of(int seed) {
  return "random:" + std::to_string(seed);
}

std::string pct_of(int depth, int seed) {
  return "pct:" + std::to_string(depth) + ":" + std::to_string(seed);
}

/// Plays threads that write their numbers, and returns what they have written.
std::string written_under(const std::string& text, int threads, int numbers) {
  return undisturbed([&] {
    std::string written;
    std::mutex mutex;  // for runs in which a thread has lost its turn
    std::vector<std::function<void()>> bodies;
    for (int thread = 0; thread < threads; ++thread) {
      bodies.emplace_back([&written, &mutex, thread, numbers] {
        for (int i = 0; i < numbers; ++i) {
          step();
          const std::lock_guard lock(mutex);
          written += static_cast<char>('a' + thread);
        }
      });
    }
    const auto report = play(plan_of(text), bodies);
    return std::pair(written, report);
  });
}

int switches_in(const std::string& written) {
  int count = 0;
  for (std::size_t i = 1; i < written.size(); ++i) count += written[i] != written[i - 1];
  return count;
}

}  // namespace

TEST(a_text_is_read) {
  const auto random = plan_of("random:18446744073709551615");
  CHECK(random.kind == schedule::Kind::random);
  CHECK_EQ(random.seed, ~std::uint64_t{0});
  CHECK(!random.exact);
  const auto pct = plan_of("pct:3:7,exact");
  CHECK(pct.kind == schedule::Kind::pct);
  CHECK_EQ(pct.depth, 3);
  CHECK_EQ(pct.seed, std::uint64_t{7});
  CHECK(pct.exact);
}

TEST(other_texts_are_refused) {
  for (const char* text : {"", "random", "random:", "random:x", "random:-1", "random:1:2", "pct:1", "pct:0:1",
                           "pct:17:1", "pct:3:", "pct:3:7:8", "exact", ",exact", "random:1,quick",
                           "random:1 ", "RANDOM:1", "random:18446744073709551616"})
    CHECK(!schedule::parse(text));
}

TEST(a_seed_gives_one_order) {
  for (int seed = 0; seed < 20; ++seed) {
    CHECK_EQ(written_under(random_of(seed), 4, 10), written_under(random_of(seed), 4, 10));
    CHECK_EQ(written_under(pct_of(3, seed), 4, 10), written_under(pct_of(3, seed), 4, 10));
  }
}

TEST(the_trace_tells_orders_apart) {
  std::set<std::uint64_t> traces;
  std::set<std::string> orders;
  for (int seed = 0; seed < 30; ++seed) {
    const auto [written, trace] = undisturbed([&] {
      std::string letters;
      std::mutex mutex;
      const auto body = [&](char letter) {
        return [&letters, &mutex, letter] {
          for (int i = 0; i < 10; ++i) {
            step();
            const std::lock_guard lock(mutex);
            letters += letter;
          }
        };
      };
      const auto report = play(plan_of(random_of(seed)), {body('a'), body('b'), body('c')});
      CHECK(report.steps > 0);
      return std::pair(std::pair(letters, report.trace), report);
    });
    traces.insert(trace);
    orders.insert(written);
  }
  CHECK_EQ(traces.size(), std::size_t{30});
  CHECK_EQ(orders.size(), std::size_t{30});
}

TEST(pct_switches_less_often_than_its_depth) {
  // With depth 1 no priority changes, so each thread runs to its end. Each change is good for two more
  // switches: away from the thread, and back to it when the others have ended.
  std::set<std::string> orders;
  for (int seed = 0; seed < 100; ++seed) {
    const auto written = written_under(pct_of(1, seed), 3, 20);
    CHECK_EQ(switches_in(written), 2);
    orders.insert(written);
  }
  CHECK_EQ(orders.size(), std::size_t{6});  // all orders of three threads
  int most = 0;
  for (int seed = 0; seed < 100; ++seed) {
    const int switches = switches_in(written_under(pct_of(3, seed), 3, 20));
    CHECK(switches <= 2 + 2 * 2);
    most = std::max(most, switches);
  }
  CHECK(most > 2);
}

TEST(threads_that_wait_for_each_other_are_part_of_the_order) {
  const auto ping_pong = [](int seed) {
    Stuck stuck(2);
    Lock lock(stuck);
    Condition changed(stuck);
    int turn = 0;
    const auto player = [&](int own) {
      return [&, own] {
        for (int i = 0; i < 20; ++i) {
          lock.take();
          while (turn != own && !stuck.is_stuck()) changed.wait(lock);
          turn = 1 - own;
          changed.notify();
          lock.give_back();
        }
        stuck.ended();
      };
    };
    auto report = play(plan_of(random_of(seed)), {player(0), player(1)});
    CHECK(!stuck.is_stuck());
    report.taken += stuck.timeouts();
    return std::pair(report.trace, report);
  };
  const auto trace_of = [&](int seed) { return undisturbed([&] { return ping_pong(seed); }); };
  for (int seed = 0; seed < 5; ++seed) CHECK_EQ(trace_of(seed), trace_of(seed));
}

TEST(a_sleeping_thread_loses_the_turn) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  const auto report = play(plan_of("pct:1:0"), {[&] {
                                                  step();
                                                  std::unique_lock lock(mutex);
                                                  changed.wait_for(lock, 300s, [&] { return done; });
                                                  lock.unlock();
                                                  step();
                                                },
                                                [&] {
                                                  step();
                                                  {
                                                    const std::lock_guard lock(mutex);
                                                    done = true;
                                                  }
                                                  changed.notify_all();
                                                  step();
                                                }});
  CHECK(done);
  CHECK(report.steps > 0);
}

TEST(a_thread_that_asks_lets_others_go_on) {
  for (const auto& text : {random_of(1), pct_of(1, 1), pct_of(1, 2), pct_of(1, 3)}) {
    bool done = false;
    int asked = 0;
    play(plan_of(text), {[&] {
                           while (!done && ++asked < 1'000'000) schedule::point(schedule::Point::poll);
                         },
                         [&] {
                           step();
                           done = true;
                         }});
    CHECK(done);
    CHECK(asked < 1'000'000);
  }
}

TEST(a_wait_ends_at_its_time) {
  std::cv_status status = std::cv_status::no_timeout;
  play(plan_of("random:1"), {[&] {
         std::mutex mutex;
         std::unique_lock lock(mutex);
         const auto end = std::chrono::steady_clock::now() + 5ms;
         while (std::chrono::steady_clock::now() < end) status = schedule::sleep(&mutex, lock, end);
       }});
  CHECK(status == std::cv_status::timeout);
}

namespace {

std::atomic<int> looks{0};

/// Plays a thread that sleeps until another one has computed for some time, and looks meanwhile.
schedule::Report report_of_a_sleep(const std::string& text, std::chrono::nanoseconds period) {
  std::mutex mutex;
  bool done = false;
  return play(plan_of(text), {[&] {
                                std::unique_lock lock(mutex);
                                const schedule::Look look{period, [] {
                                                            ++looks;
                                                            return false;
                                                          }};
                                while (!done)
                                  schedule::sleep(&mutex, lock, std::chrono::steady_clock::time_point::max(),
                                                  look);
                                lock.unlock();
                                step();
                              },
                              [&] {
                                step();
                                // With the turn, so that the look comes while the other thread cannot run.
                                const int before = looks;
                                while (period < 1s && looks < before + 3) std::this_thread::yield();
                                {
                                  const std::lock_guard lock(mutex);
                                  done = true;
                                }
                                schedule::wake(&mutex);
                                step();
                              },
                              [] {
                                for (int i = 0; i < 5; ++i) step();
                              }});
}

}  // namespace

TEST(a_look_is_no_part_of_the_order) {
  int compared = 0;
  for (int seed = 0; seed < 20; ++seed) {
    for (const auto& text : {random_of(seed), pct_of(2, seed)}) {
      const auto without = report_of_a_sleep(text, 1h), with = report_of_a_sleep(text, 1ms);
      if (without.taken > 0 || with.taken > 0) continue;  // held up by the system
      CHECK_EQ(with.trace, without.trace);
      CHECK_EQ(with.steps, without.steps);
      ++compared;
    }
  }
  CHECK(compared > 0 && looks > 0);
}

TEST(a_thread_goes_on_if_its_look_says_so) {
  std::cv_status status = std::cv_status::no_timeout;
  play(plan_of("random:1"), {[&] {
         std::mutex mutex;
         std::unique_lock lock(mutex);
         const schedule::Look look{1ms, [] { return true; }};
         while (status != std::cv_status::timeout)
           status = schedule::sleep(&mutex, lock, std::chrono::steady_clock::time_point::max(), look);
       }});
  CHECK(status == std::cv_status::timeout);
}

namespace {

std::atomic<bool> in_look{false};
std::binary_semaphore look_may_end{0};

}  // namespace

TEST(a_thread_that_loses_the_turn_in_its_look_gets_it_again) {
  std::mutex mutex;
  bool done = false;
  play(plan_of("random:1"), {[&] {
                               std::unique_lock lock(mutex);
                               const schedule::Look look{1ms, [] {
                                                           if (!in_look.exchange(true))
                                                             look_may_end.acquire();
                                                           return false;
                                                         }};
                               while (!done)
                                 schedule::sleep(&mutex, lock, std::chrono::steady_clock::time_point::max(),
                                                 look);
                             },
                             [&] {
                               while (!in_look) step();
                               {
                                 const std::lock_guard lock(mutex);
                                 done = true;
                               }
                               schedule::wake(&mutex);
                               const auto before = schedule::report().taken;
                               while (schedule::report().taken == before) step();
                               look_may_end.release();
                             }});
  CHECK(done);
}

TEST(the_end_frees_all_threads) {
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  schedule::start(plan_of("pct:1:5"));
  step();
  for (int i = 0; i < 4; ++i) {
    const schedule::NewThread announced;
    threads.emplace_back([announced, &ended] {
      announced.begin();  // waits for the turn, which the first thread has
      for (int k = 0; k < 100; ++k) step();
      ++ended;
    });
  }
  schedule::stop();
  for (auto& thread : threads) thread.join();
  CHECK_EQ(ended.load(), 4);
  CHECK(!schedule::is_on());
}

TEST(a_thread_that_never_comes_is_not_waited_for) {
  schedule::start(plan_of("random:3"));
  step();
  {
    const schedule::NewThread never;
  }
  std::thread other([] { step(); });
  const auto end = std::chrono::steady_clock::now() + 60s;
  {
    const schedule::Outside away;
    other.join();
  }
  CHECK(std::chrono::steady_clock::now() < end);
  schedule::stop();
}

TEST(a_forked_child_has_no_schedule) {
  schedule::start(plan_of("random:3"));
  step();
  const pid_t child = fork();
  if (child == 0) {
    step();
    _exit(schedule::is_on() ? 1 : 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(schedule::is_on());
  schedule::stop();
}

namespace {

/// What three processes write in turns, into memory that they share.
std::string written_by_processes(const std::string& text) {
  constexpr int kProcesses = 3, kNumbers = 8;
  struct Page {
    std::atomic<int> count;
    char letters[kProcesses * kNumbers];
  };
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* page = static_cast<Page*>(memory);
  const int turns = memfd_create("turns", MFD_CLOEXEC);
  auto plan = plan_of(text);
  plan.turns = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(turns);
  plan.processes = kProcesses;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    plan.process = process;
    schedule::start(plan);
    for (int i = 0; i < kNumbers; ++i) {
      step();
      page->letters[page->count.fetch_add(1)] = static_cast<char>('a' + process);
    }
    schedule::stop();
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
  }
  close(turns);
  std::string written(page->letters, static_cast<std::size_t>(page->count.load()));
  munmap(memory, sizeof(Page));
  return written;
}

}  // namespace

TEST(processes_take_turns) {
  // The first step of a process that comes early waits for the others; from there on all draw one order.
  std::set<std::string> orders;
  for (int seed = 0; seed < 6; ++seed) {
    const auto text = random_of(seed) + ",exact";
    const auto first = written_by_processes(text);
    CHECK_EQ(first.size(), std::size_t{24});
    CHECK_EQ(written_by_processes(text), first);
    orders.insert(first);
  }
  CHECK(orders.size() > 1);
}

TEST_MAIN
