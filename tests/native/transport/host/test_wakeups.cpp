// Who wakes those that sleep: at an operation's start the last rank, among work items the one that delivers
// the last.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/cores.hpp"
#include "tests/native/transport/harness.hpp"
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/host/mapped_peers.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

Deadline later() {
  return Deadline::in(Milliseconds(300'000));
}

Group& with_host(Group& group, HostGroup host, int size) {
  group.name = "test";
  group.rank = host.index;
  group.size = size;
  group.host = std::move(host);
  return group;
}

/// A rank with nothing above its start.
struct Member {
  Group group;
  CurrentOperation operation;
  FailureChannel failures;
  Waiter waiter;
  OperationStart start;
  MappedPeers peers;

  Member(HostGroup host, int size)
      : operation(group, later()),
        failures(with_host(group, std::move(host), size)),
        waiter(group, operation, failures),
        start(group, operation, failures, waiter),
        peers(group, operation, failures, waiter, start) {}

  RankLine& line() { return group.own_line(); }
  void begin() {
    const Announcement announcement{.signature = {.collective = 1}};
    operation.end();
    CHECK(operation.begin(announcement, later()));
    peers.begin(announcement);
    start.pass(announcement);
  }
};

/// Ranks of this process, which have met.
class Members {
 public:
  explicit Members(int size) : members_(static_cast<std::size_t>(size)) {
    MemoryStore store;
    std::deque<Listener> listeners(static_cast<std::size_t>(size));
    std::vector<RankRecord> records;
    for (int rank = 0; rank < size; ++rank)
      records.push_back({rank, machine_key(), "", getpid(), pid_namespace(),
                         listeners[static_cast<std::size_t>(rank)].name()});
    run_threads(size, [&](int rank) {
      auto& listener = listeners[static_cast<std::size_t>(rank)];
      (*this)[rank].emplace(form_host_group(store, {}, records, rank, {}, listener, later()), size);
    });
  }
  std::optional<Member>& operator[](int rank) { return members_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(members_.size()); }
  RankLine& line(int rank) { return (*this)[rank]->line(); }
  std::vector<std::uint32_t> wakeups() {
    std::vector<std::uint32_t> counts;
    for (auto& member : members_) counts.push_back(member->line().wakeups.load());
    return counts;
  }

 private:
  std::deque<std::optional<Member>> members_;
};

/// Sleeps on every line but one's until somebody wakes it, as a waiting rank does, but never looks by itself.
class Sleepers {
 public:
  Sleepers(Members& members, int except) {
    for (int rank = 0; rank < members.size(); ++rank) {
      if (rank == except) continue;
      RankLine& line = members.line(rank);
      const std::uint32_t seen = line.wakeups.load();
      line.sleepers.fetch_add(1);
      threads_.emplace_back([this, &line, seen] {
        const timespec limit{20, 0};  // for a wake-up that never comes
        while (line.wakeups.load() == seen) {
          if (syscall(SYS_futex, &line.wakeups, FUTEX_WAIT, seen, &limit, nullptr, 0) != 0 &&
              errno == ETIMEDOUT)
            break;
        }
        if (line.wakeups.load() != seen) woken_.fetch_add(1);
        line.sleepers.fetch_sub(1);
      });
    }
  }
  /// How many were woken.
  int join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
    return woken_.load();
  }
  ~Sleepers() { join(); }
  Sleepers(const Sleepers&) = delete;

 private:
  std::atomic<int> woken_{0};
  std::vector<std::thread> threads_;
};

/// Until all ranks but one sleep, beside the sleepers above.
void await_sleep(Members& members, int except) {
  const Deadline deadline = later();
  for (int rank = 0; rank < members.size(); ++rank) {
    while (rank != except && members.line(rank).sleepers.load() < 2) {
      if (deadline.passed()) throw check::Failure("rank " + std::to_string(rank) + " does not sleep");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

// Nobody is woken before the last one comes, and everybody once then.
TEST(the_last_rank_to_begin_wakes_the_others) {
  for (const int size : {2, 3, 5}) {
    Members members(size);
    for (int round = 0; round < 15; ++round) {
      const int last = round % size;
      for (int rank = 0; rank < size; ++rank) members[rank]->group.oversubscribed = round % 2;
      const auto before = members.wakeups();
      Sleepers sleepers(members, last);
      run_threads(size, [&](int rank) {
        if (rank == last) {
          await_sleep(members, last);
          CHECK(members.wakeups() == before);
        }
        members[rank]->begin();
      });
      CHECK_EQ(sleepers.join(), size - 1);
      const auto after = members.wakeups();
      for (int rank = 0; rank < size; ++rank) {
        const auto nth = static_cast<std::size_t>(rank);
        CHECK_EQ(after[nth] - before[nth], rank == last ? 0u : 1u);
      }
    }
  }
}

// Ranks that come at the same time: at least one of them finds all there at once, and wakes the others.
TEST(of_ranks_that_begin_together_one_wakes_the_others) {
  constexpr int kSize = 4, kRounds = 3'000;
  Members members(kSize);
  // As if everybody slept all the time.
  for (int rank = 0; rank < kSize; ++rank) members.line(rank).sleepers.fetch_add(1);
  std::vector<std::vector<std::uint32_t>> counts(kRounds + 1);
  counts[0] = members.wakeups();
  std::atomic<int> through{0};
  run_threads(kSize, [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    const auto await = [&](int count) {
      while (through.load() < count) {
        members[rank]->failures.check();
        std::this_thread::yield();
      }
    };
    for (int round = 1; round <= kRounds; ++round) {
      if (random() % 8 == 0) usleep(random() % 100);
      members[rank]->begin();
      // All wake-ups of the round have been counted when everybody is through, and none of the next.
      if (through.fetch_add(1) + 1 == 2 * kSize * round - kSize)
        counts[static_cast<std::size_t>(round)] = members.wakeups();
      await(2 * kSize * round - kSize);
      through.fetch_add(1);
      await(2 * kSize * round);
    }
  });
  for (std::size_t round = 1; round <= kRounds; ++round) {
    std::uint32_t woken = 0;
    for (std::size_t rank = 0; rank < kSize; ++rank) woken += counts[round][rank] - counts[round - 1][rank];
    CHECK(woken >= kSize - 1);
  }
}

// The rank that holds all work items lets the others sleep until it has delivered the last one.
TEST(the_last_work_item_wakes_those_who_wait_for_it) {
  for (const int size : {2, 3, 5}) {
    Members members(size);
    for (int round = 0; round < 15; ++round) {
      const int holder = round % size;
      std::atomic<bool> held{false};
      for (int rank = 0; rank < size; ++rank) members[rank]->group.oversubscribed = round % 2;
      run_threads(size, [&](int rank) { members[rank]->begin(); });
      const auto before = members.wakeups();
      Sleepers sleepers(members, holder);
      run_threads(size, [&](int rank) {
        MappedPeers& peers = members[rank]->peers;
        if (rank == holder) {
          for (int item = 0; item < size; ++item) CHECK(peers.claim_work_item() >= 0);
          held = true;
          await_sleep(members, holder);
          for (int item = 1; item < size; ++item) peers.deliver_work_item();
          CHECK(members.wakeups() == before);
          peers.deliver_work_item();
        }
        while (!held.load()) std::this_thread::yield();
        CHECK_EQ(peers.claim_work_item(), -1);
        peers.await_work_items();
      });
      CHECK_EQ(sleepers.join(), size - 1);
      const auto after = members.wakeups();
      for (int rank = 0; rank < size; ++rank) {
        const auto nth = static_cast<std::size_t>(rank);
        CHECK_EQ(after[nth] - before[nth], rank == holder ? 0u : 1u);
      }
    }
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
