// Ranks that have made no group yet are found among the children of their launcher, which is this process.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "diagnosis/jobs/unstarted.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

/// A process that sleeps until the end of this object, started with the variables of a rank.
class Sleeper {
 public:
  explicit Sleeper(std::vector<const char*> environment) {
    environment.push_back(nullptr);
    int ends[2];
    CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    pid = ::fork();
    if (pid == 0) {
      ::execle("/bin/sleep", "sleep", "1000", nullptr, const_cast<char* const*>(environment.data()));
      ::_exit(1);
    }
    ::close(ends[1]);
    char none = 0;
    CHECK(::read(ends[0], &none, 1) == 0);  // execle() has closed the other end
    ::close(ends[0]);
  }
  ~Sleeper() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t pid = 0;
};

Job job_with(const Sleeper& rank_0) {
  Job job;
  job.size = 4;
  job.ranks[0].rank = 0;
  job.ranks[0].pid = rank_0.pid;
  return job;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr std::chrono::milliseconds kSample{20};

}  // namespace

TEST(a_process_that_was_started_as_the_rank) {
  const Sleeper known({"RANK=0", "MASTER_PORT=7"}), late({"RANK=2", "MASTER_PORT=7"});
  const Sleeper other_job({"RANK=3", "MASTER_PORT=8"}), same_rank({"RANK=0", "MASTER_PORT=7"});
  Job job = job_with(known);
  find_unstarted(job, {::getpid()}, kSample);
  CHECK_EQ(job.unstarted.size(), std::size_t{1});
  CHECK_EQ(job.unstarted[0].pid, late.pid);
  CHECK_EQ(job.unstarted[0].rank, 2);
  CHECK(job.unstarted[0].activity == Activity::sleeps);
  const auto text = whereabouts_of_unstarted(job, 2);
  CHECK(has(text, base::text("has made no group yet; its process ", late.pid, " sleeps")));
  CHECK(has(whereabouts_of_unstarted(job, 1), "has no process here"));
}

TEST(a_stopped_process_is_said_to_be_stopped) {
  const Sleeper known({"RANK=0", "MASTER_PORT=7"}), late({"RANK=2", "MASTER_PORT=7"});
  ::kill(late.pid, SIGSTOP);
  CHECK(::waitpid(late.pid, nullptr, WUNTRACED) == late.pid);
  Job job = job_with(known);
  find_unstarted(job, {::getpid()}, kSample);
  CHECK(has(whereabouts_of_unstarted(job, 2), base::text("its process ", late.pid, " is stopped")));
}

TEST(a_process_that_has_ended_is_no_candidate) {
  const Sleeper known({}), ended({});
  ::kill(ended.pid, SIGKILL);
  siginfo_t facts{};
  CHECK(::waitid(P_PID, static_cast<id_t>(ended.pid), &facts, WEXITED | WNOWAIT) == 0);  // it stays a zombie
  Job job = job_with(known);
  find_unstarted(job, {::getpid()}, kSample);
  CHECK(job.unstarted.empty());
}

TEST(forks_of_a_launcher_do_not_say_which_rank_they_are) {
  const Sleeper known({}), first({}), second({});
  Job job = job_with(known);
  find_unstarted(job, {::getpid()}, kSample);
  CHECK_EQ(job.unstarted.size(), std::size_t{2});
  const auto text = whereabouts_of_unstarted(job, 3);
  CHECK(has(text, "one of these processes") && has(text, std::to_string(first.pid)) &&
        has(text, std::to_string(second.pid)));
}

TEST(without_a_launcher_nothing_is_known) {
  const Sleeper known({}), late({});
  Job job = job_with(known);
  find_unstarted(job, {}, kSample);
  CHECK(job.unstarted.empty());
  CHECK(has(whereabouts_of_unstarted(job, 1), "has no process here"));
}

TEST_MAIN
