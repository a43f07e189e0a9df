// Ranks prove to each other what they meet for: who makes another group, or belongs to another job, is told.
#include "transport/bootstrap/identity.hpp"

#include "base/lack.hpp"
#include "tests/native/forwarding_store.hpp"
#include "tests/native/transport/harness.hpp"
#include "transport/bootstrap/meeting.hpp"
#include "transport/claim.hpp"
#include "transport/common_call.hpp"
#include "transport/msgpack.hpp"
#include "transport/rank_names.hpp"

namespace vccl {
namespace {

constexpr std::chrono::seconds kPromptly{20};  // on a busy machine; far below the timeout of the groups

CommunicatorConfig config_of(const std::vector<std::uint64_t>& ranks, int rank) {
  CommunicatorConfig config = test_config(rank, static_cast<int>(ranks.size()));
  config.call = "new_group";
  config.global_ranks = ranks;
  return config;
}

/// What one rank does: it makes the group of `ranks`, as the rank with that number in the group.
struct Part {
  std::vector<std::uint64_t> ranks;
  int rank;
};

/// The ranks meet under one prefix. Returns the text of the error that each of them gets, or of the error
/// that it finds once its group is there.
std::vector<std::string> texts_of(Store& store, const std::vector<Part>& parts) {
  std::vector<std::string> texts(parts.size());
  const auto start = Clock::now();
  run_threads(static_cast<int>(parts.size()), [&](int i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    const Error error = error_of([&] {
      const auto made = Communicator::create(store, config_of(part.ranks, part.rank));
      // All members of one group may have come before anybody else. Later meetings look for this.
      store.get("failure", Deadline::in(Milliseconds(200'000)));
      check_identity(store, config_of(part.ranks, part.rank));
    });
    CHECK(error.code() == ErrorCode::mismatch);
    texts[static_cast<std::size_t>(i)] = error.what();
  });
  CHECK(Clock::now() - start < kPromptly);
  return texts;
}

TEST(different_groups_under_one_key) {
  const std::vector<std::vector<Part>> cases = {
      {{{0, 1}, 0}, {{0, 1}, 1}, {{2, 3}, 0}, {{2, 3}, 1}},                        // apart
      {{{0, 1, 2}, 0}, {{0, 1, 2}, 1}, {{0, 1, 2}, 2}, {{3, 4}, 0}, {{3, 4}, 1}},  // of other sizes
      {{{0, 1}, 0}, {{1, 2}, 0}},                     // a rank that both lists have
      {{{0, 1}, 0}, {{1, 0}, 0}},                     // the same ranks in another order
      {{{0, 1, 2}, 0}, {{0, 1, 2}, 1}, {{0, 1}, 1}},  // one list within the other
  };
  for (const auto& parts : cases) {
    MemoryStore memory;
    for (const std::string& text : texts_of(memory, parts)) {
      for (const Part* part : {&parts.front(), &parts.back()})
        check_contains(text, "called new_group for " + global_ranks_text(part->ranks));
      check_contains(text, "use_local_synchronization=True");
    }
    FileStore files;
    CHECK_EQ(texts_of(files, parts).size(), parts.size());
  }
}

TEST(ranks_with_different_settings) {
  MemoryStore store;
  run_threads(2, [&](int i) {
    CommunicatorConfig config = config_of({4, 7}, i);
    config.call += i == 0 ? ", NAME=1" : ", NAME=2";
    const Error error = error_of([&] { Communicator::create(store, config); });
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(), "need the same settings");
    for (const char* text : {"rank 4 ", "rank 7 ", "with NAME=1", "with NAME=2"})
      check_contains(error.what(), text);
  });
}

TEST(groups_of_one_rank_share_a_key_with_another_group) {
  const std::vector<Part> parts = {{{0}, 0}, {{1}, 0}, {{2, 3}, 0}, {{2, 3}, 1}, {{4}, 0}};
  MemoryStore store;
  run_threads(static_cast<int>(parts.size()), [&](int i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    const CommunicatorConfig config = config_of(part.ranks, part.rank);
    const auto made = Communicator::create(store, config);
    CHECK_EQ(made->size(), config.size);
    check_identity(store, config);
  });
  // Two groups of several ranks contradict each other, which does not concern the ranks that are alone.
  CHECK(error_of([&] { Communicator::create(store, config_of({5, 6}, 0)); }).code() == ErrorCode::mismatch);
  check_identity(store, config_of({0}, 0));
  CHECK_EQ(Communicator::create(store, config_of({7}, 0))->size(), 1);
  CHECK(error_of([&] { check_identity(store, config_of({2, 3}, 0)); }).code() == ErrorCode::mismatch);
}

TEST(a_rank_that_is_alone_and_awaited) {
  const auto check_text = [](const Error& error) {
    check_contains(error.what(), "called new_group for rank 1");
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(), "called new_group for ranks 0, 1");
  };
  MemoryStore alone_first, together_first;
  const auto made = Communicator::create(alone_first, config_of({1}, 0));
  check_text(error_of([&] { Communicator::create(alone_first, config_of({0, 1}, 0)); }));
  check_text(error_of([&] { check_identity(alone_first, config_of({1}, 0)); }));

  run_threads(2, [&](int i) {
    if (i == 1) together_first.get("identity", Deadline::in(Milliseconds(200'000)));
    check_text(error_of(
        [&] { Communicator::create(together_first, i == 0 ? config_of({0, 1}, 0) : config_of({1}, 0)); }));
  });
}

TEST(a_notice_reaches_who_waits_elsewhere_once) {
  const auto board = std::make_shared<MemoryStore>();
  MemoryStore first, second;
  run_threads(3, [&](int i) {
    // Rank 1 makes the group of ranks 1 and 2 under the key of the one of ranks 0 and 1. Rank 2 waits for it
    // under its own key.
    CommunicatorConfig config = i == 0 ? config_of({0, 1}, 0) : config_of({1, 2}, i - 1);
    config.notices = board;
    const Error error = error_of([&] { Communicator::create(i == 2 ? second : first, config); });
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(), "for ranks 0, 1");
    check_contains(error.what(), "for ranks 1, 2");
  });
  NoticeBoard(board.get()).check(2, {1, 2});  // this process has thrown it
  NoticeBoard(board.get()).check(2, {2, 3});
  NoticeBoard(nullptr).check(2, {1, 2});
}

TEST(calls_that_differ) {
  MemoryStore store, board;
  const CommonCall halves{"split_group([[0, 1], [2, 3]])", {{0, 1}, {2, 3}}};
  const CommonCall others{"split_group([[0, 2], [1, 3]])", {{0, 2}, {1, 3}}};
  agree_on_call(store, "split/1", 0, "g", halves, &board);
  agree_on_call(store, "split/1", 1, "g", halves, &board);
  const Error error = error_of([&] { agree_on_call(store, "split/1", 2, "g", others, &board); });
  CHECK(error.code() == ErrorCode::mismatch);
  check_contains(error.what(),
                 "rank 2 called split_group([[0, 2], [1, 3]]) on group g, but rank 0 called split");
  CHECK_EQ(std::string(error_of([&] { NoticeBoard(&board).check(1, {0, 1}); }).what()), error.what());
  agree_on_call(store, "split/2", 2, "g", others, &board);
}

TEST(claims_count_the_meetings_of_a_process) {
  MemoryStore store;
  const CommunicatorConfig config = config_of({4, 7}, 1);
  CHECK_EQ(Claim(store, "cpu", config).prefix(), "cpu/1/");
  const Claim again(store, "cpu", config);
  CHECK_EQ(again.prefix(), "cpu/2/");
  CHECK_EQ(Claim(store, "vdev", config).prefix(), "vdev/1/");
  CHECK_EQ(Claim(store, "cpu", config_of({4, 7}, 0)).prefix(), "cpu/1/");
}

// A rank that can have no memory for its claim tells the others, and the next meeting has the next number.
TEST(a_claim_that_the_system_has_no_room_for) {
  MemoryStore store;
  const CommunicatorConfig config = config_of({4, 7}, 1);
  base::make_lack(base::Lack::space);
  const Error error = error_of([&] { Claim(store, "cpu", config); });
  CHECK(error.code() == ErrorCode::system);
  check_contains(error.what(),
                 "rank 7 could not join group test: ftruncate of shared memory failed: No space");
  CHECK(Meeting::has_failed(store, "cpu/1/"));
  CHECK_EQ(Claim(store, "cpu", config).prefix(), "cpu/2/");
  CHECK(!Meeting::has_failed(store, "cpu/2/"));
}

// The processes of one job are not taken for those of another. A process that is gone, or whose group has
// ended, is no hindrance.
TEST(two_processes_that_claim_a_rank) {
  FileStore store;
  const CommunicatorConfig config = config_of({4, 7}, 1);
  {
    Processes first(1, [&](int) {
      {
        const Claim ended(store, "ended", config);
      }
      const Claim claim(store, "used", config);
      store.set("claimed", "");
      store.get("over", Deadline::in(Milliseconds(200'000)));
    });
    store.get("claimed", Deadline::in(Milliseconds(200'000)));
    CHECK_EQ(Claim(store, "ended", config).prefix(), "ended/2/");
    const Error error = error_of([&] { Claim(store, "used", config); });
    CHECK(error.code() == ErrorCode::mismatch);
    check_contains(error.what(), "rank 7 of group test is process " + std::to_string(first.pid(0)));
    check_contains(error.what(), "and also process " + std::to_string(getpid()));
    // The first job's meeting, if it still goes on, fails with the same error.
    CHECK_EQ(
        msgpack::decode(store.get("used/1/failure", Deadline::in(Milliseconds(0)))).at("error").as_string(),
        error.what());
    store.set("over", "");
    first.check_ends();
  }
  CHECK_EQ(Claim(store, "used", config).prefix(), "used/2/");
}

TEST(a_table_of_an_earlier_job_is_not_believed) {
  // The keys of a job that died at the wrong moment: its table is still there.
  MemoryStore left;
  {
    struct Keeper final : ForwardingStore {
      using ForwardingStore::ForwardingStore;
      void remove(const std::string&) override {}
    } keeper(left);
    run_threads(2, [&](int rank) { Communicator::create(keeper, test_config(rank, 2)); });
  }
  const Error error = error_of([&] { Communicator::create(left, test_config(1, 2)); });
  CHECK(error.code() == ErrorCode::mismatch);
  check_contains(error.what(), "another job uses the same store, or left its records there");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
