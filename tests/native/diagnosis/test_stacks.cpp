// How an answer with stacks is read, and how processes are asked for one.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "base/signals.hpp"
#include "diagnosis/stacks.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

const std::string kAnswer =
    "Thread 0x00007f01 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
    "\n"
    "Thread 0x00007f02 [MainThread] (most recent call first):\n"
    "  File \"/home/me/a \", line 3 in b.py\", line 31 in load\n"
    "  File \"/home/me/train.py\", line 7 in <module>\n"
    "main 7f02 waits\n"
    "lock free\n";

TEST(the_main_thread_comes_first) {
  const auto stacks = parse_stacks(kAnswer);
  CHECK(stacks && stacks->main_known && stacks->waits && !stacks->lock_held);
  CHECK_EQ(stacks->threads.size(), std::size_t{2});
  CHECK_EQ(stacks->threads[0].thread, std::uint64_t{0x7f02});
  CHECK_EQ(stacks->threads[0].frames.size(), std::size_t{2});
  CHECK((stacks->threads[0].frames[0] == Frame{"/home/me/a \", line 3 in b.py", "load", 31}));
  CHECK((stacks->threads[1].frames[0] == Frame{"/usr/lib/python3.11/threading.py", "wait", 320}));
}

TEST(an_answer_without_its_last_line_is_not_read) {
  for (std::size_t length = 0; length < kAnswer.size(); ++length)
    CHECK(!parse_stacks(kAnswer.substr(0, length)));
}

TEST(a_main_thread_that_is_not_known) {
  const auto stacks = parse_stacks("Thread 0x1 (most recent call first):\nmain 0 goes on\nlock held\n");
  CHECK(stacks && !stacks->main_known && !stacks->waits && stacks->lock_held);
}

TEST(damaged_answers_do_no_harm) {
  std::mt19937 random(20261126);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = kAnswer;
    for (int i = 0; i < 4; ++i) text[random() % text.size()] = static_cast<char>(random());
    if (random() % 2) text.erase(random() % text.size(), random() % 40);
    parse_stacks(text);
  }
}

/// A process that answers with a fixed text, as a process with Python does.
class Child {
 public:
  /// The handler goes on for `lasting` after it has answered. `more_threads` have the name of the thread that
  /// answers, and block the signal. The child has the memory of the process `asked` open, as if it asked it.
  explicit Child(bool answers, std::chrono::milliseconds lasting = {}, int more_threads = 0,
                 pid_t asked = 0) {
    lasting_ms_ = static_cast<int>(lasting.count());
    int ready[2];
    CHECK(::pipe2(ready, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) serve(answers, more_threads, asked, ready[1]);
    char byte;
    CHECK(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  static inline int memory_ = -1, lasting_ms_ = 0;

  [[noreturn]] static void serve(bool answers, int more_threads, pid_t asked, int ready) {
    memory_ = ::memfd_create(kStackMemoryName, MFD_CLOEXEC);
    ::fcntl(memory_, F_SETFL, O_APPEND);
    // A child's memory has the same number in each, because nothing else is opened before.
    const std::string its = "/proc/" + std::to_string(asked) + "/fd/" + std::to_string(memory_);
    if (asked && ::open(its.c_str(), O_RDWR) < 0) ::_exit(1);
    struct sigaction action{};
    action.sa_handler = [](int) {
      (void)!::write(memory_, kAnswer.data(), kAnswer.size());
      ::poll(nullptr, 0, lasting_ms_);
    };
    if (answers) ::sigaction(kStackSignal, &action, nullptr);
    ::prctl(PR_SET_NAME, kStackThread);
    ::usleep(more_threads * 20'000);  // the clock that tells when a thread was started has ticks of 10 ms
    for (int i = 0; i < more_threads; ++i) {
      const base::SignalsBlocked blocked;
      std::thread([] { ::pause(); }).detach();
    }
    (void)!::write(ready, "r", 1);
    for (;;) ::pause();
  }

  pid_t pid_;
};

std::optional<Stacks> ask(pid_t pid, std::chrono::milliseconds patience = std::chrono::seconds(60)) {
  return ask_for_stacks({pid}, patience).front();
}

TEST(a_process_answers_each_time_anew) {
  const Child child(true);
  for (int i = 0; i < 5; ++i) {
    const auto stacks = ask(child.pid());
    CHECK(stacks && stacks->threads.size() == 2);
  }
}

TEST(a_process_without_a_handler_is_not_signalled) {
  const Child child(false);
  CHECK(!ask(child.pid()));
  CHECK(::kill(child.pid(), 0) == 0);
}

TEST(a_process_that_still_handles_a_request_is_waited_for) {
  const Child child(true, std::chrono::milliseconds(300));
  for (int i = 0; i < 3; ++i) {
    // The answer is there at once, and the handler goes on.
    CHECK(ask(child.pid()));
  }
}

TEST(a_stopped_process_does_not_answer) {
  const Child child(true);
  ::kill(child.pid(), SIGSTOP);
  CHECK(!ask(child.pid(), std::chrono::milliseconds(100)));
  ::kill(child.pid(), SIGCONT);
  CHECK(ask(child.pid()));
}

TEST(a_process_that_does_not_answer_keeps_nobody_waiting) {
  const Child stopped(true), child(true);
  ::kill(stopped.pid(), SIGSTOP);
  // Asked one after the other, the second would have no time left.
  const auto stacks = ask_for_stacks({stopped.pid(), child.pid()}, std::chrono::seconds(2));
  CHECK(!stacks[0]);
  CHECK(stacks[1]);
}

TEST(a_thread_that_has_the_name_for_a_moment_is_not_asked) {
  // Threads have the name of the one that starts them, and the last in the list would get the signal.
  const Child child(true, {}, 3);
  CHECK(ask(child.pid()));
}

TEST(a_process_that_asks_others_is_asked_itself) {
  const Child other(true), asker(true, {}, 0, other.pid());
  // The asker has the memory of the other open as well. What is written there is no answer of the asker.
  for (int i = 0; i < 3; ++i) CHECK(ask(asker.pid(), std::chrono::seconds(5)));
}

TEST(a_process_that_is_not_there) {
  CHECK(!ask(1 << 22, std::chrono::milliseconds(100)));
}

}  // namespace

TEST_MAIN
