// Faults that strike a rank between two blocks of a collective: what ends a rank is an error of the others
// that names it, and what holds a rank up costs nothing but time.
//
// VCCL_TEST_ROUNDS=N plays N groups of each kind instead of a few.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "tests/native/check.hpp"
#include "tests/native/collectives/world.hpp"
#include "transport/block_hook.hpp"

using namespace vccl;

namespace {

enum class Fault : std::uint8_t { kill, segv, abort, exit, stall, stop };
constexpr Fault kEnding[] = {Fault::kill, Fault::segv, Fault::abort, Fault::exit};
constexpr int kExitStatus = 7;

// What is to strike this process. The hook has no argument.
struct Plan {
  Fault fault = Fault::kill;
  std::atomic<std::int64_t> blocks_left{-1};  // before it strikes; below 0 it does not
  std::int64_t every = 0;                     // blocks after which it strikes again; 0: once
  std::atomic<int>* struck = nullptr;
} plan;

void die_by(int signal_number) {
  signal(signal_number, SIG_DFL);  // sanitizers have handlers of their own
  raise(signal_number);
}

void strike() noexcept {
  if (plan.blocks_left.load() < 0 || plan.blocks_left.fetch_sub(1) != 0) return;
  plan.struck->fetch_add(1);
  if (plan.every > 0) plan.blocks_left.store(plan.every);
  switch (plan.fault) {
    case Fault::kill:
      return die_by(SIGKILL);
    case Fault::segv:
      return die_by(SIGSEGV);
    case Fault::abort:
      return die_by(SIGABRT);
    case Fault::exit:
      _exit(kExitStatus);
    case Fault::stall:
      return std::this_thread::sleep_for(std::chrono::milliseconds(2));
    case Fault::stop:
      raise(SIGSTOP);
  }
}

int status_after(Fault fault) {
  switch (fault) {
    case Fault::kill:
      return -SIGKILL;
    case Fault::segv:
      return -SIGSEGV;
    case Fault::abort:
      return -SIGABRT;
    case Fault::exit:
      return kExitStatus;
    default:
      return 0;
  }
}

/// A group of forked ranks, one of which is to be struck.
struct Round {
  std::uint64_t seed;
  World world;
  int victim;
  Fault fault;
  std::int64_t first, every;  // blocks

  Round(std::uint64_t number, bool ends) : seed(number * 7919 + 1) {
    std::mt19937_64 random(seed);
    world.size = 2 + int(random() % 3);
    world.hosts = random() % 10 == 0 ? 2 : 1;
    world.mapped = random() % 3 != 0 ? 15 : 0;
    victim = int(random() % std::uint64_t(world.size));
    fault = ends ? kEnding[random() % std::size(kEnding)] : random() % 2 == 0 ? Fault::stall : Fault::stop;
    first = std::int64_t(random() % (ends ? 200 : 10));
    every = ends ? 0 : 1 + std::int64_t(random() % 10);
  }
  std::string text() const { return "round of seed " + std::to_string(seed); }
};

constexpr int kCases = 30;  // in a group whose ranks all live

/// Plays cases, and checks each result: a number of them, or until a rank has died.
void play_cases(Communicator& communicator, std::byte* memory, const Round& round, std::size_t bytes) {
  const bool ends = status_after(round.fault) != 0;
  for (std::uint64_t seed = round.seed;; ++seed) {
    for (const auto& c : reference::random_cases(seed, round.world.size, kCases, 1 << 18))
      if (memory_for(c, round.world.size) <= bytes) play_and_check(communicator, c, memory);
    if (!ends) return;
  }
}

void be_rank(Store& store, const Round& round, int rank, std::atomic<int>& struck) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  constexpr std::size_t kBytes = 1 << 22;
  try {
    as_rank(store, round.world, rank, kBytes, [&](Communicator& communicator, std::byte* memory) {
      if (rank == round.victim) {
        plan.fault = round.fault;
        plan.every = round.every;
        plan.struck = &struck;
        plan.blocks_left.store(round.first);
        block_hook.store(&strike);
      }
      play_cases(communicator, memory, round, kBytes);
      block_hook.store(nullptr);
    });
  } catch (const Error& error) {
    if (status_after(round.fault) == 0 || rank == round.victim) throw;
    // Whoever leaves because of the death is reported as such to those who have not seen it yet.
    if (error.code() == ErrorCode::peer_left) return;
    if (error.code() != ErrorCode::peer_dead) throw;
    check_contains(error.what(), "rank " + std::to_string(round.victim));
  }
}

/// Lets a rank go on each time that it has stopped itself, until it has ended.
void resume(pid_t pid) {
  siginfo_t info{};
  while (waitid(P_PID, id_t(pid), &info, WEXITED | WSTOPPED | WNOWAIT) == 0 && info.si_code == CLD_STOPPED) {
    waitid(P_PID, id_t(pid), &info, WSTOPPED);  // takes this stop, so that only the next one is seen
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(pid, SIGCONT);
  }
}

int play_round(const Round& round) {
  FileStore store;
  const std::unique_ptr<void, void (*)(void*)> page(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
      [](void* p) { munmap(p, 4096); });
  auto& struck = *new (page.get()) std::atomic<int>(0);
  Processes processes(round.world.size, [&](int rank) { be_rank(store, round, rank, struck); });
  resume(processes.pid(round.victim));
  const auto statuses = processes.wait();
  for (int rank = 0; rank < round.world.size; ++rank) {
    const int expected = rank == round.victim ? status_after(round.fault) : 0;
    if (statuses[std::size_t(rank)] != expected)
      throw check::Failure(round.text() + ": rank " + std::to_string(rank) + " ended with " +
                           std::to_string(statuses[std::size_t(rank)]) + ", not " + std::to_string(expected));
  }
  return struck.load();
}

int rounds() {
  const char* wanted = std::getenv("VCCL_TEST_ROUNDS");
  return wanted != nullptr ? std::atoi(wanted) : 15;
}

}  // namespace

TEST(a_rank_that_ends_between_two_blocks_is_named) {
  int struck = 0;
  for (int i = 0; i < rounds(); ++i) struck += play_round(Round(std::uint64_t(i), true));
  std::printf("%d faults\n", struck);
  CHECK_EQ(struck, rounds());
}

TEST(a_rank_that_is_held_up_between_two_blocks_costs_time_alone) {
  int struck = 0;
  for (int i = 0; i < rounds(); ++i) struck += play_round(Round(std::uint64_t(i), false));
  std::printf("%d faults\n", struck);
  CHECK(struck > rounds());
}

TEST_MAIN
