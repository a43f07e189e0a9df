// The work items of an operation's work, which whichever rank runs does: each is done once, and all see it
// done; and what happens when a rank dies, or the group fails, in the middle of one.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/native/collectives/delayed.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;

namespace {

Deadline later() {
  return Deadline::in(Milliseconds(300'000));
}
constexpr std::size_t kBytes = 64, kPlace = 128;  // of a work item, and from one to the next

/// Flags that forked ranks share.
class Flags {
 public:
  Flags() : flags_(static_cast<std::atomic<int>*>(page())) {}
  ~Flags() { munmap(flags_, 4096); }
  Flags(const Flags&) = delete;

  void raise(int flag) { flags_[flag].fetch_add(1); }
  /// Until it has been raised that often.
  void await(int flag, int times = 1) const {
    const Deadline deadline = later();
    while (flags_[flag].load() < times) {
      if (deadline.passed()) throw check::Failure("flag " + std::to_string(flag) + " was not raised");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  static void* page() {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw_system("mmap");
    return page;
  }
  std::atomic<int>* flags_;
};

/// A rank with an input of kBytes and an output with a place for every item.
class Member {
 public:
  Member(Store& store, int rank, int size) : rank_(rank), size_(size) {
    CommunicatorConfig config = test_config(rank, size);
    config.regions = {region_.region()};
    communicator_ = Communicator::create(store, config);
  }

  Communicator& communicator() { return *communicator_; }
  std::span<std::byte> input() { return region_.span(0, kBytes); }
  std::span<std::byte> output() { return region_.span(4096, kPlace * static_cast<std::size_t>(size_)); }

  void fill_input(std::uint64_t round) {
    for (std::size_t i = 0; i < kBytes; ++i) input()[i] = pattern(rank_, round, i);
  }
  Announcement announcement() {
    Announcement announcement{.signature = {.collective = 1}};
    announcement.shows = true;
    announcement.input = input();
    announcement.output = output();
    return announcement;
  }
  /// A rank's input goes into its place in all outputs, behind it how often. No two ranks may do so at a
  /// time.
  void do_work_item(Peers& peers, int item) {
    for (int to = 0; to < size_; ++to) {
      std::byte* const place = peers.output(to).data() + kPlace * static_cast<std::size_t>(item);
      std::memcpy(place, peers.input(item).data(), kBytes);
      ++*reinterpret_cast<std::uint32_t*>(place + kBytes);
    }
  }
  /// All work items of the round are in our output, once. Then it is ours: what anybody wrote to it, or read
  /// of our input, from now on would be seen in the next round.
  void check_output(std::uint64_t round) {
    for (int item = 0; item < size_; ++item) {
      const std::byte* place = output().data() + kPlace * static_cast<std::size_t>(item);
      CHECK_EQ(*reinterpret_cast<const std::uint32_t*>(place + kBytes), 1u);
      for (std::size_t i = 0; i < kBytes; ++i) CHECK(place[i] == pattern(item, round, i));
    }
    std::memset(output().data(), 0, output().size());
    std::memset(input().data(), 0xff, input().size());
  }
  /// Claims and does work items until none is left; how many these were.
  int do_work_items(Peers& peers) {
    int done = 0;
    for (int item; (item = peers.claim_work_item()) >= 0; peers.deliver_work_item(), ++done)
      do_work_item(peers, item);
    return done;
  }
  /// A whole operation through `through`, in which work(peers) does work items.
  template <class Work>
  void run(std::uint64_t round, Communicator& through, Work work) {
    fill_input(round);
    Operation operation(through, announcement(), later());
    Peers& peers = *through.all_peers();
    CHECK(peers.all_mapped());
    work(peers);
    peers.await_work_items();
    check_output(round);
    operation.finish();
  }
  template <class Work>
  void run(std::uint64_t round, Work work) {
    run(round, communicator(), work);
  }
  void run(std::uint64_t round) {
    run(round, [&](Peers& peers) { do_work_items(peers); });
  }

 private:
  const int rank_, size_;
  TestRegion region_;
  std::unique_ptr<Communicator> communicator_;
};

/// Operations between ranks that are held up at random: around each claim and each delivery, before the start
/// and behind it, and in the middle of work items.
void many_operations(Store& store, int rank, int size, std::uint64_t rounds) {
  Member member(store, rank, size);
  DelayedCommunicator delayed(member.communicator(), static_cast<std::uint64_t>(size));
  Delays delays(static_cast<std::uint64_t>(rank) * 31 + 7);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    delays.change_pace();
    // Of some rounds without delays, so that ranks also race for work items.
    const bool is_delayed = round % 8 < 5;
    Communicator& through = is_delayed ? static_cast<Communicator&>(delayed) : member.communicator();
    member.run(round, through, [&](Peers& peers) {
      for (int item; (item = peers.claim_work_item()) >= 0; peers.deliver_work_item())
        if (is_delayed)
          delays.around([&] { member.do_work_item(peers, item); });
        else
          member.do_work_item(peers, item);
      CHECK_EQ(peers.claim_work_item(), -1);
    });
  }
}

}  // namespace

TEST(every_work_item_is_done_once_between_threads) {
  for (const int size : {1, 2, 3, 5}) {
    MemoryStore store;
    run_threads(size, [&](int rank) { many_operations(store, rank, size, 1'500); });
  }
}

TEST(every_work_item_is_done_once_between_processes) {
  for (const int size : {2, 4, 7}) {
    FileStore store;
    run_processes(size, [&](int rank) { many_operations(store, rank, size, 1'500); });
  }
}

// Each rank by turns is alone behind the start of the operation: its own item is the first that it gets, and
// the others, who come when all are done, get none.
TEST(one_rank_may_do_all_work_items) {
  constexpr int kRounds = 12;
  for (const int size : {1, 2, 4}) {
    MemoryStore store;
    Flags done;
    run_threads(size, [&](int rank) {
      Member member(store, rank, size);
      for (int round = 0; round < kRounds; ++round) {
        member.run(static_cast<std::uint64_t>(round), [&](Peers& peers) {
          if (round % size == rank) {
            CHECK_EQ(peers.claim_work_item(), rank);
            member.do_work_item(peers, rank);
            peers.deliver_work_item();
            CHECK_EQ(member.do_work_items(peers), size - 1);
            done.raise(round);
          } else {
            done.await(round);
            CHECK_EQ(peers.claim_work_item(), -1);
          }
        });
      }
    });
  }
}

// What one rank has claimed, nobody else gets: neither its own item nor another's, and for as long as it
// takes.
TEST(a_work_item_that_is_held_is_waited_for) {
  MemoryStore store;
  Flags held, looked;
  run_threads(3, [&](int rank) {
    Member member(store, rank, 3);
    for (int round = 0; round < 6; ++round) {
      member.run(static_cast<std::uint64_t>(round), [&](Peers& peers) {
        if (round % 3 == rank) {
          const int own = peers.claim_work_item(), other = peers.claim_work_item();
          CHECK_EQ(own, rank);
          CHECK(other >= 0 && other != rank);
          held.raise(round);
          looked.await(round, 2);  // the others have found all work items claimed, and wait
          member.do_work_item(peers, own);
          member.do_work_item(peers, other);
          peers.deliver_work_item();
          peers.deliver_work_item();
        } else {
          held.await(round);
          member.do_work_items(peers);
          looked.raise(round);
        }
        CHECK_EQ(peers.claim_work_item(), -1);
      });
    }
  });
}

// Killed with a work item in its hands: its own, and then another rank's when its own is done. An error
// within the minutes that a forked rank has, and not the timeout, is in time.
TEST(a_rank_killed_with_a_work_item_is_reported) {
  enum { held, reported };
  for (const int victim : {0, 1, 2})
    for (const bool own : {true, false}) {
      FileStore store;
      Flags flags;
      Processes processes(3, [&](int rank) {
        Member member(store, rank, 3);
        member.run(0);
        const Error error = error_of([&] {
          member.run(1, [&](Peers& peers) {
            if (rank == victim) {
              CHECK_EQ(peers.claim_work_item(), rank);
              if (!own) {
                member.do_work_item(peers, rank);
                peers.deliver_work_item();
                CHECK(peers.claim_work_item() >= 0);
              }
              flags.raise(held);
              pause();
            }
            flags.await(held);
            member.do_work_items(peers);
          });
        });
        CHECK(error.code() == ErrorCode::peer_dead);
        check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
        check_contains(error.what(), " in the midst of test_1(0 elements) (operation 2 of group test)");
        CHECK(member.communicator().failed());
        // Nobody leaves before everybody knows: that would be another error.
        flags.raise(reported);
        flags.await(reported, 2);
      });
      flags.await(held);
      processes.kill_and_wait(victim);
      processes.check_ends(victim);
    }
}

// Killed behind the start of the operation before it has claimed any: nothing is missing, the others do all
// work items. The next operation tells that it is dead.
TEST(a_rank_killed_before_it_claims_takes_nothing_along) {
  enum { inside, dead, claimed, through, reported };
  for (const int victim : {0, 1, 2}) {
    FileStore store;
    Flags flags;
    Processes processes(3, [&](int rank) {
      Member member(store, rank, 3);
      member.run(0);
      member.run(1, [&](Peers& peers) {
        if (rank == victim) {
          flags.raise(inside);
          pause();
        }
        flags.await(dead);
        // One of the others holds all work items for so long that the other looks for the dead meanwhile.
        if (rank == (victim + 1) % 3) {
          for (int item; (item = peers.claim_work_item()) >= 0;) member.do_work_item(peers, item);
          flags.raise(claimed);
          std::this_thread::sleep_for(Milliseconds(300));
          for (int item = 0; item < 3; ++item) peers.deliver_work_item();
        }
        flags.await(claimed);
        CHECK_EQ(peers.claim_work_item(), -1);
      });
      // Whoever is still in the operation when another one fails in the next has that error too.
      flags.raise(through);
      flags.await(through, 2);
      const Error error = error_of([&] { member.run(2); });
      CHECK(error.code() == ErrorCode::peer_dead);
      check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
      check_contains(error.what(), " to begin test_1(0 elements) (operation 3 of group test)");
      flags.raise(reported);
      flags.await(reported, 2);
    });
    flags.await(inside);
    processes.kill_and_wait(victim);
    flags.raise(dead);
    processes.check_ends(victim);
  }
}

// Killed anywhere at all, again and again: an error or none is missing, but nobody hangs or takes anything
// wrong for a result.
TEST(ranks_killed_at_random_among_work_items) {
  std::mt19937 random(5);
  for (int run = 0; run < 30; ++run) {
    const int victim = run % 4;
    const auto delay = random() % 5'000;
    FileStore store;
    Flags ready;
    Processes processes(4, [&](int rank) {
      Member member(store, rank, 4);
      ready.raise(0);
      const Error error = error_of([&] {
        for (std::uint64_t round = 0;; ++round) member.run(round);
      });
      CHECK(error.code() == ErrorCode::peer_dead || error.code() == ErrorCode::peer_left);
    });
    ready.await(0, 4);
    usleep(delay);
    kill(processes.pid(victim), SIGKILL);
    processes.check_ends(victim);
  }
}

// A rank that is stuck in a work item is to blame, and not the one that has none and is late as well.
TEST(a_timeout_names_the_rank_that_holds_a_work_item) {
  MemoryStore store;
  Flags held;
  const Error error = same_error_of(3, [&](int rank) {
    Member member(store, rank, 3);
    return error_of([&] {
      const Deadline deadline = rank == 0 ? Deadline::in(Milliseconds(4'000)) : later();
      Operation operation(member.communicator(), member.announcement(), deadline);
      Peers& peers = *member.communicator().all_peers();
      CHECK(peers.all_mapped());
      if (rank == 1) CHECK_EQ(peers.claim_work_item(), 1);
      held.raise(0);
      if (rank != 0)
        while (!member.communicator().failed()) std::this_thread::sleep_for(Milliseconds(1));
      held.await(0, 3);
      member.do_work_items(peers);
      peers.await_work_items();
      operation.finish();
    });
  });
  CHECK(error.code() == ErrorCode::timeout);
  check_contains(error.what(), "rank 0 waited 4 s for rank 1 in the midst of test_1(0 elements)");
}

// Aborted while rank 1 does the item of rank 0, in whose memory it writes: the error of rank 0, and of rank
// 2, which finds no item left to claim, comes only when rank 1 has stopped.
TEST(nobody_writes_in_a_work_item_after_the_error) {
  enum { inside, waiting };
  MemoryStore store;
  Flags flags;
  std::atomic<int> stopped{0};
  const Error error = same_error_of(3, [&](int rank) {
    Member member(store, rank, 3);
    member.run(0);
    const Error error = error_of([&] {
      Operation operation(member.communicator(), member.announcement(), later());
      Peers& peers = *member.communicator().all_peers();
      CHECK(peers.all_mapped());
      if (rank == 1) {
        while (peers.claim_work_item() >= 0) {
        }
        flags.raise(inside);
        std::byte* const theirs[] = {peers.output(0).data(), peers.output(2).data()};
        while (!member.communicator().failed())
          for (std::byte* place : theirs) place[7] = std::byte{1};
        std::this_thread::sleep_for(Milliseconds(100));
        for (std::byte* place : theirs) place[8] = std::byte{2};
        stopped = 1;
        peers.deliver_work_item();
        peers.await_work_items();
      } else if (rank == 0) {
        flags.await(inside);
        flags.raise(waiting);
        peers.await_work_items();
      } else {
        flags.await(waiting);
        member.communicator().abort("for the test");
        CHECK_EQ(peers.claim_work_item(), -1);
        peers.await_work_items();
      }
      operation.finish();
    });
    CHECK_EQ(stopped.load(), 1);
    // It is ours again.
    std::memset(member.output().data(), rank, member.output().size());
    flags.raise(2);
    flags.await(2, 3);
    for (const std::byte byte : member.output()) CHECK_EQ(static_cast<int>(byte), rank);
    return error;
  });
  CHECK(error.code() == ErrorCode::aborted);
  CHECK_EQ(std::string(error.what()), "rank 2 aborted group test: for the test");
}

// Aborted at any time by a thread beside: everybody has this error, whatever it was about to claim or
// deliver, and no item that was taken for done was not.
TEST(an_abort_at_any_time_reaches_all) {
  for (int run = 0; run < 60; ++run) {
    MemoryStore store;
    Flags ready;
    const Error error = same_error_of(4, [&](int rank) {
      Member member(store, rank, 4);
      ready.raise(0);
      std::jthread beside;
      if (rank == run % 4)
        beside = std::jthread([&] {
          ready.await(0, 4);
          std::this_thread::sleep_for(std::chrono::microseconds(run * 37 % 1'500));
          member.communicator().abort("for the test");
        });
      return error_of([&] {
        for (std::uint64_t round = 0;; ++round) member.run(round);
      });
    });
    CHECK(error.code() == ErrorCode::aborted);
  }
}

TEST_MAIN
