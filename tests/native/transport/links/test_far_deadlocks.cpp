// Ranks on several (pretended) hosts that wait for each other learn so over the store, and others are left
// alone.
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/state/far_record.hpp"
#include "transport/state/wait_exchange.hpp"

using namespace vccl;

namespace {

constexpr auto kTimeout = Milliseconds(30'000);

/// Every thread of the program waits.
void all_wait() {
  DeadlockWatch::of_this_process().set_blocked_threads(
      [](std::span<const pthread_t>) -> std::optional<std::uint64_t> { return 1; });
}

/// One more connection to a store.
class Connection final : public Store {
 public:
  explicit Connection(Store& store) : store_(store) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::string get(const std::string& key, const Deadline& deadline) override {
    return store_.get(key, deadline);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    return store_.compare_set(key, expected, value);
  }
  void remove(const std::string& key) override { store_.remove(key); }

 private:
  Store& store_;
};

/// The stores are made before the ranks are forked: one a group, and one for the waits.
struct Job {
  std::map<std::string, FileStore> stores;
  FileStore waits;
  std::string hosts;  // one character a rank

  std::unique_ptr<Communicator> make(const std::string& name, int rank) {
    find_zmq_for_tests();
    CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
    config.name = name;
    config.device = "cpu";
    config.host_id = std::string(1, hosts[static_cast<std::size_t>(rank)]);
    config.connect_store = [this] { return std::make_unique<Connection>(waits); };
    return Communicator::create(stores.at(name), config);
  }
};

void collective(Communicator& communicator, std::uint64_t count, Needs needs = Needs::all) {
  Operation operation(communicator, {.signature = {.count = count}, .needs = needs}, Deadline::in(kTimeout));
  operation.finish();
}

Error soon(const std::function<void()>& call) {
  const auto begin = Clock::now();
  const Error error = error_of(call);
  CHECK(Clock::now() - begin < kTimeout / 2);
  CHECK(error.code() == ErrorCode::mismatch);
  return error;
}

/// Receives a byte, and blocks until that has ended.
void receive(Communicator& communicator, int peer) {
  std::byte byte{};
  std::promise<std::optional<Error>> ended;
  communicator.messages().receive(
      peer, {0}, {.count = 1}, {&byte, 1}, Deadline::in(kTimeout),
      [&](int, const Error* error) { ended.set_value(error ? std::optional(*error) : std::nullopt); });
  if (const auto error = ended.get_future().get()) throw *error;
}

}  // namespace

TEST(two_groups_in_crossed_order_on_two_hosts) {
  for (const std::string hosts : {"ab", "aabb"}) {
    Job job{.hosts = hosts};
    for (const char* name : {"a", "b"}) job.stores[name];
    run_processes(static_cast<int>(hosts.size()), [&](int rank) {
      all_wait();
      auto a = job.make("a", rank), b = job.make("b", rank);
      const bool first = hosts[static_cast<std::size_t>(rank)] == 'a';
      const Error error = soon([&] { collective(first ? *a : *b, 7); });
      check_contains(error.what(), "rank 0: test_0(7 elements) on cpu, operation 1 of group a; ");
      check_contains(error.what(), base::text("rank ", hosts.size() - 1, ": test_0(7 elements) on cpu, "));
    });
  }
}

TEST(a_ring_of_receives_through_two_and_three_hosts) {
  for (const std::string hosts : {"abc", "aab"}) {
    Job job{.hosts = hosts};
    job.stores["a"];
    run_processes(3, [&](int rank) {
      all_wait();
      auto a = job.make("a", rank);
      const Error error = soon([&] { receive(*a, (rank + 1) % 3); });
      for (int i = 0; i < 3; ++i)
        check_contains(error.what(), base::text("rank ", i, ": recv from rank ", (i + 1) % 3));
    });
  }
}

// Everybody counts as blocked, but each wait comes to its end.
TEST(slow_ranks_on_other_hosts_are_no_deadlock) {
  Job job{.hosts = "abc"};
  for (const char* name : {"a", "b"}) job.stores[name];
  run_processes(3, [&](int rank) {
    all_wait();
    auto a = job.make("a", rank), b = job.make("b", rank);
    for (int slow = 0; slow < 3; ++slow) {
      if (rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2000));
      collective(*a, 1);
      if (rank == 0) receive(*b, 1);
      if (rank == 1) {
        std::byte byte{};
        std::promise<void> sent;
        b->messages().send(0, {0}, {.count = 1}, {&byte, 1}, Deadline::in(kTimeout),
                           [&](int, const Error* error) {
                             CHECK(!error);
                             sent.set_value();
                           });
        sent.get_future().get();
      }
      collective(*b, 2);
    }
  });
}

TEST(a_store_that_is_gone_is_told_of_and_nothing_else_fails) {
  Job job{.hosts = "ab"};
  job.stores["a"];
  run_processes(2, [&](int rank) {
    all_wait();
    CommunicatorConfig config = test_config(rank, 2);
    find_zmq_for_tests();
    config.host_id = std::to_string(rank);
    config.connect_store = []() -> std::unique_ptr<Store> {
      throw Error(ErrorCode::bootstrap, "it is gone");
    };
    auto a = Communicator::create(job.stores.at("a"), config);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    if (rank == 0) {
      std::thread later([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2000));
        CHECK_EQ(DeadlockWatch::of_this_process().far_silence(), std::string("it is gone"));
      });
      collective(*a, 1);
      later.join();
    } else {
      collective(*a, 1);
    }
  });
}

TEST(a_record_comes_back_as_it_was_written) {
  FarRecord record;
  record.copy.version = 8;
  record.copy.looks = 3;
  record.copy.concluded = true;
  PublishedWaits& waits = record.copy.waits;
  waits.count = 1;
  waits.blocked = 1;
  waits.rank = 5;
  waits.state = 9;
  waits.waits[0].communicator = ~0ull;
  waits.waits[0].awaited_count = 2;
  waits.waits[0].awaited = {7, ~0ull};
  waits.waits[0].states = {0, 4};
  waits.waits[0].length = 1;
  waits.waits[0].text[0] = 'x';
  record.facts = {{{1, 2, 3}}, {{4, 5, 6}}, false};
  const FarRecord read = decode_far_record(encode(record));
  CHECK(read.copy.waits == waits && read.facts == record.facts);
  CHECK(read.copy.version == 8 && read.copy.looks == 3 && read.copy.concluded);
}

TEST(a_record_that_no_process_writes_is_refused) {
  const std::string bytes = encode(FarRecord{});
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK(error_of([&] { decode_far_record(bytes.substr(0, length)); }).code() == ErrorCode::protocol);
  FarRecord many;
  many.facts.begun.resize(WaitFacts::kMost + 1);
  CHECK(error_of([&] { decode_far_record(encode(many)); }).code() == ErrorCode::protocol);
}

TEST(what_is_not_listed_counts_only_if_the_list_is_whole) {
  const WaitFacts facts{{{1, 2, 3}}, {{4, 5, 6}}, false}, whole{{}, {}, true};
  CHECK(facts.has_not_begun(1, 3, false) && !facts.has_not_begun(1, 2, false));
  CHECK(facts.has_not_begun(1, 4, true) && !facts.has_not_begun(1, 3, true));
  CHECK(!facts.has_not_begun(2, 9, false));
  CHECK(facts.has_heard_all(4, 5, 6) && !facts.has_heard_all(4, 5, 5));
  CHECK(!facts.has_heard_all(4, 9, 0) && whole.has_heard_all(4, 9, 0) && !whole.has_heard_all(4, 9, 1));
}

// What was read before the members were first seen together says nothing of that time.
TEST(old_records_of_other_hosts_prove_nothing) {
  const auto far = [](std::uint64_t looks, std::uint64_t round) {
    return WaitRecord::Copy{.version = 2, .looks = looks, .round = round};
  };
  const auto here = [](std::uint64_t looks) { return WaitRecord::Copy{.version = 2, .looks = looks}; };
  HeldVersions held;
  const std::set<Token> members{1, 2};
  CHECK(!held.have_held(members, {{1, here(1)}, {2, far(5, 3)}}, 2, 4));
  CHECK(!held.have_held(members, {{1, here(9)}, {2, far(9, 4)}}, 2, 4));
  CHECK(!held.have_held(members, {{1, here(9)}, {2, far(9, 5)}}, 2, 5));
  CHECK(!held.have_held(members, {{1, here(9)}, {2, far(11, 6)}}, 2, 6));
  CHECK(held.have_held(members, {{1, here(9)}, {2, far(12, 7)}}, 2, 7));
}

TEST_MAIN
