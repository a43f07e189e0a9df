// The meeting in which a group is put together: whoever cannot join, or dies, is named by all others at once,
// however long the timeout is.
#include "transport/bootstrap/meeting.hpp"

#include <atomic>
#include <new>

#include "tests/native/forwarding_store.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/meeting/deadly_store.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{50'000};          // far beyond what any of these may take to be seen
constexpr std::chrono::seconds kPromptly{20};  // on a busy machine

CommunicatorConfig long_config(int rank, const std::string& hosts) {
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.timeout = kLong;
  config.host_id = std::string(1, hosts[static_cast<std::size_t>(rank)]);
  return config;
}

/// Only the ranks that `come` take part; of these, `victim` is killed at `where`. The others name it.
void check_death(const std::string& hosts, const std::vector<int>& come, int victim, const char* where) {
  FileStore store;
  const auto start = Clock::now();
  Processes processes(static_cast<int>(hosts.size()), [&](int rank) {
    if (std::find(come.begin(), come.end(), rank) == come.end()) return;
    DeadlyStore deadly(store, rank == victim ? where : "");
    const Error error = error_of([&] { Communicator::create(deadly, long_config(rank, hosts)); });
    check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
    check_contains(error.what(), "died");
    CHECK(error.code() == ErrorCode::peer_dead);
  });
  processes.check_ends(victim);
  CHECK(Clock::now() - start < kPromptly);
}

// Processes first: a process that has had threads should not fork under the thread sanitizer.
TEST(rank_0_dies_before_all_have_come) {
  find_zmq_for_tests();
  for (const std::string hosts : {"aaa", "abc"}) check_death(hosts, {0, 1}, 0, "get joined/2");
}

TEST(a_rank_dies_before_rank_0_has_come) {
  check_death("aaa", {1, 2}, 1, "get table");
  check_death("aaaaaaaaaaaa", {3, 11}, 11, "get table");
}

TEST(a_rank_dies_at_any_point_of_the_meeting) {
  find_zmq_for_tests();
  const std::pair<int, const char*> points[] = {{0, "set table"}, {1, "get table"},    {0, "set host/"},
                                                {2, "set link/"}, {1, "get link/"},    {1, "set messages/"},
                                                {0, "get mess"},  {2, "get messages"}, {2, "set host/"}};
  for (const auto& [victim, where] : points) check_death("aabb", {0, 1, 2, 3}, victim, where);
}

/// Looks whether records of ranks are removed while another rank has not read the table yet, and may be about
/// to read them.
class SlowReader final : public ForwardingStore {
 public:
  SlowReader(Store& inner, std::atomic<int>& tables_read)
      : ForwardingStore(inner), tables_read_(tables_read) {}
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::string value = ForwardingStore::get(key, deadline);
    if (key == "table") {
      usleep(50'000);
      ++tables_read_;
    }
    return value;
  }
  void remove(const std::string& key) override {
    if (key.starts_with("joined/")) before_last_read += tables_read_ != 2;
    ForwardingStore::remove(key);
  }

  int before_last_read = 0;

 private:
  std::atomic<int>& tables_read_;
};

TEST(records_stay_until_everybody_has_read_the_table) {
  MemoryStore store;
  std::atomic<int> tables_read{0};
  run_threads(3, [&](int rank) {
    SlowReader slow(store, tables_read);
    const auto c = Communicator::create(slow, test_config(rank, 3));
    CHECK_EQ(slow.before_last_read, 0);
  });
  CHECK_EQ(store.keys(), 1u);  // the identity
}

/// What an earlier communicator knows, for a later one of the same ranks.
struct Known final : Earlier {
  explicit Known(std::shared_ptr<Communicator> made) : communicator(std::move(made)) {}
  void check() override { communicator->check(); }
  std::optional<RankEnd> end_of(int rank) override { return communicator->end_of(rank); }
  std::string deaths() override { return ""; }
  std::shared_ptr<Communicator> communicator;
};

TEST(a_death_that_an_earlier_communicator_knows_of) {
  find_zmq_for_tests();
  for (const std::string hosts : {"aaa", "aba"}) {
    for (int victim : {0, 1, 2}) {
      FileStore first, second;
      const auto start = Clock::now();
      Processes processes(3, [&](int rank) {
        const std::shared_ptr<Communicator> before = Communicator::create(first, long_config(rank, hosts));
        pass_committed(*before, 3);
        first.set("through/" + std::to_string(rank), "");
        if (rank == victim) {
          for (int other : {0, 1, 2}) first.get("through/" + std::to_string(other), Deadline::in(kLong));
          kill(getpid(), SIGKILL);
        }
        CommunicatorConfig config = long_config(rank, hosts);
        config.earlier = std::make_shared<Known>(before);
        const Error error = error_of([&] { Communicator::create(second, config); });
        CHECK(error.code() == ErrorCode::peer_dead);
        check_contains(error.what(), "rank " + std::to_string(victim) + " (pid ");
        check_contains(error.what(), "while group test was put together");
      });
      processes.check_ends(victim);
      CHECK(Clock::now() - start < kPromptly);
    }
  }
}

// Rank 1 leaves because rank 0 was killed, and rank 2 finds that rank 1 has left.
TEST(the_death_is_named_and_not_who_left_because_of_it) {
  FileStore store;
  Processes processes(3, [&](int rank) {
    auto c = Communicator::create(store, long_config(rank, "aaa"));
    store.set("ready/" + std::to_string(rank), "");
    if (rank == 0) {
      store.get("ready/1", Deadline::in(kLong));
      store.get("ready/2", Deadline::in(kLong));
      kill(getpid(), SIGKILL);
    }
    while (!c->end_of(0)) usleep(1000);
    if (rank == 1) {
      c.reset();
      store.set("left", "");
      return;
    }
    store.get("left", Deadline::in(kLong));
    const Error error = error_of([&] { pass_committed(*c, 1); });
    CHECK(error.code() == ErrorCode::peer_dead);
    check_contains(error.what(), "rank 0 (pid ");
  });
  processes.check_ends(0);
}

/// One rank cannot join, for `why`; all say so.
void check_refusal(const std::string& hosts, int culprit, const char* where) {
  find_zmq_for_tests();
  MemoryStore store;
  const auto start = Clock::now();
  run_threads(static_cast<int>(hosts.size()), [&](int rank) {
    RefusingStore refusing(store, rank == culprit ? where : "");
    const Error error = error_of([&] { Communicator::create(refusing, long_config(rank, hosts)); });
    CHECK_EQ(std::string(error.what()),
             "rank " + std::to_string(culprit) + " could not join group test: no descriptors are left");
    CHECK(error.code() == ErrorCode::system);
  });
  CHECK(Clock::now() - start < kPromptly);
}

TEST(a_rank_that_cannot_go_on_is_named_by_all) {
  for (int culprit : {0, 1, 2, 3}) {
    for (const char* where : {"set joined/", "set link/", "get link/", "set messages/", "get messages"}) {
      check_refusal("abcd", culprit, where);
    }
  }
  check_refusal("aabb", 0, "set table");
  check_refusal("aabb", 0, "set host/");
  check_refusal("aabb", 2, "set host/");
  check_refusal("aabb", 1, "get host/");
  check_refusal("aabb", 3, "set reach/");
  check_refusal("aaa", 0, "get reach/");
  check_refusal("aaa", 2, "get table");
}

TEST(a_rank_with_a_bad_argument_is_named_by_all) {
  for (int culprit : {0, 1, 2}) {
    MemoryStore store;
    run_threads(3, [&](int rank) {
      CommunicatorConfig config = long_config(rank, "aaa");
      config.prepare = [&](CommunicatorConfig&) {
        if (rank == culprit) throw Error(ErrorCode::invalid, "VCCL_ALGO is wrong");
      };
      const Error error = error_of([&] { Communicator::create(store, config); });
      CHECK_EQ(std::string(error.what()),
               "rank " + std::to_string(culprit) + " could not join group test: VCCL_ALGO is wrong");
      CHECK(error.code() == (rank == culprit ? ErrorCode::invalid : ErrorCode::bootstrap));
    });
  }
}

TEST(want_of_memory_is_named_by_all) {
  MemoryStore store;
  const Error error = same_error_of(2, [&](int rank) {
    CommunicatorConfig config = long_config(rank, "aa");
    config.prepare = [&](CommunicatorConfig&) {
      if (rank == 1) throw std::bad_alloc();
    };
    return error_of([&] { Communicator::create(store, config); });
  });
  CHECK(error.code() == ErrorCode::system);
  check_contains(error.what(), "rank 1 could not join group test: there is not enough memory");
}

TEST(too_many_regions_are_named_by_all) {
  MemoryStore store;
  const Error error = error_of([&] {
    run_threads(2, [&](int rank) {
      CommunicatorConfig config = long_config(rank, "aa");
      if (rank == 1) config.regions.resize(kMaxRegions + 1);
      Communicator::create(store, config);
    });
  });
  check_contains(error.what(), "rank 1 could not join group test: 9 regions were given; at most 8");
}

TEST(the_first_reason_counts) {
  MemoryStore store;
  const CommunicatorConfig configs[] = {long_config(0, "aaa"), long_config(1, "aaa")};
  const Deadline deadline = Deadline::in(kLong);
  Meeting first(store, configs[0], deadline), second(store, configs[1], deadline);
  const auto give_up = [](Meeting& meeting, const char* why) {
    try {
      throw std::runtime_error(why);
    } catch (...) {
      return meeting.give_up(nullptr);
    }
  };
  CHECK_EQ(std::string(give_up(first, "one").what()), "rank 0 could not join group test: one");
  CHECK_EQ(std::string(give_up(second, "two").what()), "rank 1 could not join group test: two");
  const CommunicatorConfig config = long_config(2, "aaa");
  Meeting third(store, config, deadline);
  CHECK_EQ(std::string(error_of([&] { third.get("table", deadline); }).what()),
           "rank 0 could not join group test: one");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
