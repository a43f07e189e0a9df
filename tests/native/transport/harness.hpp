// Ranks for the transport's tests: threads or forked processes, each with a little card memory.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/check.hpp"
#include "tests/native/file_store.hpp"
#include "tests/native/memory_store.hpp"
#include "transport/communicator.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

/// Shared memory as a card has it.
class TestRegion {
 public:
  explicit TestRegion(std::size_t size = 1 << 20)
      : size_(size), fd_(make_shared_memory("test-region", size)) {
    base_ = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    if (base_ == MAP_FAILED) throw_system("mmap");
  }
  ~TestRegion() { munmap(base_, size_); }
  TestRegion(const TestRegion&) = delete;
  TestRegion& operator=(const TestRegion&) = delete;

  Region region() const { return {fd_.get(), base_, size_}; }
  std::byte* base() const { return base_; }
  std::span<std::byte> span(std::size_t offset, std::size_t size) const { return {base_ + offset, size}; }

 private:
  std::size_t size_;
  FileDescriptor fd_;
  std::byte* base_;
};

inline std::string describe_test(const Signature& s, const RankNames&) {
  return "test_" + std::to_string(s.collective) + "(" + std::to_string(s.count) + " elements)";
}

inline CommunicatorConfig test_config(int rank, int size) {
  CommunicatorConfig config;
  config.name = "test";
  config.rank = rank;
  config.size = size;
  config.describe = describe_test;
  config.timeout = Milliseconds(200'000);  // less than the alarm of Processes, so that a hang says what it is
  return config;
}

/// Runs `body(rank)` on `size` threads and rethrows the first exception, by rank.
inline void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// One forked process a rank. A rank that throws prints why and exits with 1; wait() gives each one's status,
/// in which a killed one has its signal's number negated. Who is still there after four minutes is killed.
class Processes {
 public:
  Processes(int size, const std::function<void(int)>& body) {
    std::fflush(stdout);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid < 0) throw_system("fork");
      if (pid > 0) {
        pids_.push_back(pid);
        continue;
      }
      alarm(240);  // a hang ends here, as -SIGALRM
      int status = 0;
      try {
        body(rank);
      } catch (const std::exception& error) {
        std::printf("rank %d: %s\n", rank, error.what());
        std::fflush(stdout);
        status = 1;
      }
      _exit(status);
    }
  }
  ~Processes() {
    for (pid_t pid : pids_) kill(pid, SIGKILL);
    wait();
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  /// Kills a rank. When this returns it is gone with all its threads, and its sockets are closed.
  void kill_and_wait(int rank) {
    kill(pid(rank), SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid(rank)), &info, WEXITED | WNOWAIT);  // for wait() it is still there
  }

  std::vector<int> wait() {
    std::vector<int> statuses;
    for (pid_t pid : pids_) {
      int status = 0;
      waitpid(pid, &status, 0);
      statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    pids_.clear();
    return statuses;
  }
  /// Waits. All have ended well, but for the one that was killed, if any was.
  void check_ends(int killed = -1) {
    const std::vector<int> statuses = wait();
    for (int rank = 0; rank < static_cast<int>(statuses.size()); ++rank)
      CHECK_EQ(statuses[static_cast<std::size_t>(rank)], rank == killed ? -SIGKILL : 0);
  }

 private:
  std::vector<pid_t> pids_;
};

/// Every process ends well.
inline void run_processes(int size, const std::function<void(int)>& body) {
  Processes(size, body).check_ends();
}

/// A byte that depends on everything that says which byte it is.
inline std::byte pattern(int rank, std::uint64_t operation, std::size_t position) {
  std::uint64_t x =
      (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15 ^ operation * 0xbf58476d1ce4e5b9 ^ position;
  x ^= x >> 29;
  x *= 0x94d049bb133111eb;
  return static_cast<std::byte>(x >> 56);
}

/// The error that `call` throws; a Failure when it throws none.
template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw check::Failure("no error was thrown");
}

/// Every one of `size` ranks has the same error from `of_rank`.
inline Error same_error_of(int size, const std::function<Error(int)>& of_rank) {
  std::mutex mutex;
  std::vector<Error> errors;
  run_threads(size, [&](int rank) {
    const Error error = of_rank(rank);
    std::lock_guard lock(mutex);
    errors.push_back(error);
  });
  for (const Error& error : errors) {
    CHECK_EQ(std::string(error.what()), errors[0].what());
    CHECK(error.code() == errors[0].code());
  }
  return errors[0];
}

/// Rank 2 of three leaves after one operation and gives two reasons, of which the first counts. The others
/// find it in the error of their next operation. `operate(communicator)` runs an operation.
template <class Config, class Operate>
void check_reason_of_leaving(Config config, Operate operate) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto c = Communicator::create(store, config(rank));
    operate(*c);
    if (rank == 2) {
      CHECK_EQ(c->leave_reason(), "");
      c->leave_because("rank 7 died in group other");
      c->leave_because("another reason, which comes too late");
      CHECK_EQ(c->leave_reason(), "rank 7 died in group other");
      return;
    }
    const Error error = error_of([&] { operate(*c); });
    CHECK(error.code() == ErrorCode::peer_left);
    check_contains(
        error.what(),
        "rank 2 left group test (after a failure elsewhere: rank 7 died in group other) while rank ");
  });
}

}  // namespace vccl
