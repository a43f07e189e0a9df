// Which algorithm is chosen for a call: by the tuned table, by VCCL_ALGO, and by what can do the call at all.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "csrc_pg/collectives/selection/preference.hpp"
#include "csrc_pg/collectives/selector.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/families.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

using Names = std::vector<std::string>;

// Under the thread sanitizer no memory is mapped where there are several hosts (world.hpp).
const std::vector<MemoryKind> kMemories =
    kMapAcrossHosts ? std::vector{MemoryKind::mapped, MemoryKind::staged, MemoryKind::mapped_across,
                                  MemoryKind::staged_across}
                    : std::vector{MemoryKind::mapped, MemoryKind::staged, MemoryKind::staged_across};

bool is_across(MemoryKind memory) {
  return memory == MemoryKind::mapped_across || memory == MemoryKind::staged_across;
}

// Returns a group with such memory, on one host or two.
World world_with(MemoryKind memory, int ranks) {
  const bool mapped = memory == MemoryKind::mapped || memory == MemoryKind::mapped_across;
  return {ranks, mapped ? ~0 : 0, is_across(memory) ? 2 : 1};
}

std::string choice_of(Communicator& communicator, const Call& call) {
  const Choice choice = choose_algorithms(communicator, call);
  return choice.first->name + std::string(choice.otherwise ? std::string(", ") + choice.otherwise->name : "");
}

// Returns what rank 0 chooses for the calls.
Names choices(const World& world, const std::vector<Call>& calls) {
  MemoryStore store;
  Names found;
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, 0, [&](Communicator& communicator, std::byte*) {
      for (const Call& call : calls)
        if (rank == 0) found.push_back(choice_of(communicator, call));
    });
  });
  return found;
}

std::vector<Collective> collectives() {
  std::vector<Collective> all;
  for (int i = 0; i <= int(Collective::barrier); ++i) all.push_back(Collective(i));
  return all;
}

std::vector<TunedRange> rows_for(Collective collective, MemoryKind memory, int ranks) {
  std::vector<TunedRange> rows;
  for (const TunedRange& row : tuned_table())
    if (row.collective == collective && row.memory == memory && row.min_ranks <= ranks &&
        ranks <= row.max_ranks)
      rows.push_back(row);
  return rows;
}

bool can_do(const std::string& family, const Call& call, int ranks, MemoryKind memory) {
  const auto able = capable_families(to_string(call.collective), longest_buffer(call, ranks), ranks, memory);
  return std::find(able.begin(), able.end(), family) != able.end();
}

// A call of float32, one buffer or chunk of which has `count` elements.
Call call_of(Collective collective, std::size_t count) {
  return {collective, Dtype::float32, ReduceOp::sum, 0, count};
}

// The longest call that a limit of bytes allows. The barrier has no length.
Call longest_call(Collective collective, std::size_t max_bytes, int ranks) {
  const std::size_t of_one = std::max<std::size_t>(longest_buffer(call_of(collective, 1), ranks), 1);
  return call_of(collective, std::min(max_bytes, std::size_t(100) << 20) / of_one);
}

// Calls of one element, of 100 MiB, and just below and just above every limit of the table.
std::vector<Call> calls_at_limits(MemoryKind memory, int ranks) {
  std::vector<Call> calls;
  for (const Collective collective : collectives()) {
    calls.push_back(call_of(collective, 1));
    for (const TunedRange& row : rows_for(collective, memory, ranks)) {
      calls.push_back(longest_call(collective, row.max_bytes, ranks));
      calls.push_back(call_of(collective, calls.back().count + 1));
    }
  }
  return calls;
}

void check_absent(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) throw std::runtime_error("\"" + part + "\" is in: " + text);
}

std::string why_not(const std::string& text) {
  const Error error = error_of([&] { preferences(text); });
  CHECK_EQ(to_string(error.code()), std::string("invalid"));
  check_contains(error.what(), "VCCL_ALGO is \"" + text + "\"");
  return error.what();
}

}  // namespace

TEST(the_table_has_one_algorithm_for_every_call) {
  for (const Collective collective : collectives())
    for (const MemoryKind memory : kMemories)
      for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 100, kAnyRanks}) {
        const auto rows = rows_for(collective, memory, ranks);
        CHECK(!rows.empty() && rows.back().max_bytes == kAnyLength);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          CHECK(i == 0 || rows[i - 1].max_bytes < rows[i].max_bytes);
          // Rows of the same ranks share both ends: none of them covers only some of the others'.
          CHECK_EQ(rows[i].min_ranks, rows[0].min_ranks);
          CHECK_EQ(rows[i].max_ranks, rows[0].max_ranks);
          for (std::size_t j = 0; j < i; ++j)
            CHECK(rows[j].algorithm != std::string(rows[i].algorithm));  // one range each
        }
      }
}

TEST(the_table_names_only_what_can_be_done) {
  for (const TunedRange& row : tuned_table()) {
    // Between hosts, the payloads of all ranks together are bounded.
    const int ranks = std::min(row.max_ranks, is_across(row.memory) ? 4 : 16);
    CHECK(can_do(row.algorithm, longest_call(row.collective, row.max_bytes, ranks), ranks, row.memory));
  }
}

// With the numbers of ranks that were measured, every row's algorithm can do the row's calls.
TEST(a_call_has_the_algorithm_of_the_row_whose_limits_it_is_between) {
  for (const MemoryKind memory : kMemories)
    for (const int ranks : {2, 4, 8}) {
      std::vector<Call> calls;
      Names wanted;
      for (const Collective collective : collectives()) {
        const auto rows = rows_for(collective, memory, ranks);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          if (i > 0) {
            const std::size_t below = longest_call(collective, rows[i - 1].max_bytes, ranks).count;
            calls.push_back(call_of(collective, below + 1));
            wanted.push_back(rows[i].algorithm);
          }
          calls.push_back(longest_call(collective, rows[i].max_bytes, ranks));
          wanted.push_back(rows[i].algorithm);
        }
      }
      const auto found = choices(world_with(memory, ranks), calls);
      for (std::size_t i = 0; i < calls.size(); ++i)
        CHECK_EQ(found[i].substr(0, found[i].find(',')), wanted[i]);
    }
}

// The payload of a rank's chunk may be too long for the row's algorithm where there are fewer ranks than were
// measured.
TEST(what_is_chosen_can_do_the_call_whatever_the_number_of_ranks) {
  for (const MemoryKind memory : kMemories)
    for (const int ranks : {1, 2, 3, 4, 5}) {
      if (is_across(memory) && ranks == 1) continue;
      const auto calls = calls_at_limits(memory, ranks);
      const auto found = choices(world_with(memory, ranks), calls);
      for (std::size_t i = 0; i < calls.size(); ++i) {
        // What needs mapped memory comes with another algorithm, which does not.
        const auto comma = found[i].find(", ");
        const std::string last = comma == std::string::npos ? found[i] : found[i].substr(comma + 2);
        CHECK(can_do(last, calls[i], ranks,
                     is_across(memory) ? MemoryKind::staged_across : MemoryKind::staged));
        CHECK(can_do(found[i].substr(0, comma), calls[i], ranks, memory));
      }
    }
}

TEST(memory_that_not_every_rank_has_handed_over_is_staged) {
  const auto calls = calls_at_limits(MemoryKind::staged, 3);
  const Names without_any = choices({3, 0}, calls);
  MemoryStore store;
  run_threads(3, [&](int rank) {
    RankMemory memory(rank != 1, 4096);
    as_member(store, {3}, rank, memory.regions(), [&](Communicator& communicator) {
      CHECK(!communicator.all_peers()->mappable());
      for (std::size_t i = 0; i < calls.size(); ++i)
        CHECK_EQ(choice_of(communicator, calls[i]), without_any[i]);
    });
  });
}

TEST(splits_go_where_they_can_be_sent_along) {
  const std::vector<std::size_t> counts{1, 2, 3};
  Call call{Collective::all_to_all, Dtype::uint8};
  call.input_counts = call.output_counts = counts;
  for (const int mapped : {0, ~0})
    for (const std::string asked : {"", "all_to_all:oneshot"})
      check_absent(choices({3, mapped, 1, asked}, {call})[0], "oneshot");
}

TEST(families_that_can_do_a_call) {
  const auto able = [](const char* collective, std::size_t bytes, int size, MemoryKind memory) {
    std::string found;
    for (const auto& name : capable_families(collective, bytes, size, memory)) found += name + " ";
    return found;
  };
  using enum MemoryKind;
  constexpr std::size_t kMost = Peers::kPayloadBytes;
  check_contains(able("reduce", kMost, 2, mapped), "oneshot direct");
  check_absent(able("reduce", kMost + 4, 2, mapped), "oneshot");
  // In all_reduce, where every rank reduces everything, one-shot ends at shorter buffers.
  check_contains(able("all_reduce", kMost / 2, 2, mapped), "oneshot direct");
  check_absent(able("all_reduce", kMost / 2 + 4, 2, mapped), "oneshot");
  check_absent(able("all_reduce", kMost, 2, staged), "direct");
  // What a rank sends along is its own chunk.
  check_contains(able("all_gather", 4 * kMost, 4, staged), "oneshot");
  check_absent(able("all_gather", 4 * kMost + 16, 4, staged), "oneshot");
  for (const Collective collective : collectives())
    for (const MemoryKind memory : {mapped, staged, mapped_across, staged_across})
      check_contains(able(to_string(collective), std::size_t(1) << 40, 3, memory), "ring");
  check_contains(able("reduce", kMost, 4, mapped_across), "oneshot hierarchical ring");
  // A rank on no ring of hosts gets all payloads by way of another one's slots.
  check_contains(able("reduce", kMost, 8, staged_across), "oneshot ring");
  check_absent(able("reduce", kMost, 9, staged_across), "oneshot");
  check_absent(able("reduce", 4, 2, mapped_across), "direct");
  check_absent(able("reduce", 4, 2, staged_across), "staged");
  CHECK_EQ(able("all_reduce_all", 4, 2, mapped), std::string());
}

TEST(the_choice_follows_what_was_asked_for) {
  using enum Collective;
  const Call small{all_reduce, Dtype::float32, ReduceOp::sum, -1, 4},
      middle{all_reduce, Dtype::float32, ReduceOp::sum, -1, 1025},
      large{all_reduce, Dtype::float32, ReduceOp::sum, -1, 1 << 20},
      other{broadcast, Dtype::int8, ReduceOp::sum, 0, 4};
  const std::string by_table = choices({2, 0}, {other})[0];
  CHECK((choices({2, 0, 1, "all_reduce:ring"}, {small, large, other}) == Names{"ring", "ring", by_table}));
  // If the memory turns out to lie elsewhere, the next algorithm that was asked for does the call.
  CHECK((choices({2, ~0, 1, "all_reduce:direct[0-4K],ring[0-] ; broadcast : direct, ring"},
                 {small, middle, large, other}) == Names{"direct, ring", "ring", "ring", "direct, ring"}));
  CHECK((choices({2, ~0, 1, "all_reduce:oneshot,ring"}, {small, middle, large}) ==
         Names{"oneshot", "oneshot", "ring"}));
  CHECK(
      (choices({2, ~0, 2, "all_reduce:oneshot[-1K],hierarchical;barrier:ring"}, {small, large, {barrier}}) ==
       Names{"oneshot", kMapAcrossHosts ? "hierarchical, ring" : "ring", "ring"}));
  CHECK((choices({3, 0, 1, "all_reduce:direct,staged,ring"}, {small, large}) == Names{"staged", "staged"}));
  // What works on one host only is not chosen where there are more.
  CHECK((choices({2, 0, 2, "all_reduce:direct"}, {small, large}) == choices({2, 0, 2}, {small, large})));
}

TEST(a_choice_that_cannot_be_understood_says_why) {
  check_contains(why_not("ring"), "at character 1: there is no collective \"ring\"; there are all_reduce,");
  check_contains(why_not("all_reduce"), "at character 11: \":\" should be here");
  check_contains(why_not("all_reduce:tree"),
                 "at character 12: all_reduce has no algorithm \"tree\"; it has oneshot, direct");
  check_contains(why_not("all_reduce:ring[4K"), "\"-\" should be here");
  check_contains(why_not("all_reduce:ring[4K-1K]"), "the range ends before it begins");
  check_contains(why_not("all_reduce:ring[4T-]"), "\"-\" should be here");
  check_contains(why_not("all_reduce:ring[99999999999999999999-]"), "the size is too large");
  check_contains(why_not("all_reduce:ring[99999999999G-]"), "the size is too large");
  check_contains(why_not("all_reduce:ring broadcast:ring"), "\"b\" where \",\" or \";\" should be");
  check_contains(why_not(";"), "there is no collective \"\"");
  CHECK_EQ(preferences("all_reduce:ring[-],direct[1-2G];").size(), 2u);
  CHECK_EQ(preferences("all_reduce:ring[-],direct[1-2G];")[0].max_bytes, kAnyLength);
  CHECK_EQ(preferences("all_reduce:ring[-],direct[1-2G];")[1].max_bytes, std::size_t(2) << 30);
  CHECK(preferences("").empty());
}

TEST(a_choice_that_cannot_be_understood_fails_nothing) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.describe = describe;
    config.algorithms = "all_reduce:fastest";
    const auto communicator = Communicator::create(store, config);
    const Error error = error_of([&] { check_algorithm_choice(communicator->algorithm_choice()); });
    CHECK_EQ(to_string(error.code()), std::string("invalid"));
    check_contains(error.what(), "VCCL_ALGO is \"all_reduce:fastest\"");
    const Error of_call = error_of([&] { run(*communicator, {Collective::barrier}, Deadline::in(kLimit)); });
    CHECK_EQ(to_string(of_call.code()), std::string("invalid"));
    CHECK(!communicator->failed());
  });
}

TEST(different_choices_are_an_error_on_every_rank) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    as_rank(store, {2, ~0, 1, rank == 0 ? "all_reduce:ring" : "all_reduce:direct"}, rank, 4096,
            [&](Communicator& communicator, std::byte* memory) {
              const Call call{Collective::all_reduce, Dtype::float32, ReduceOp::sum, -1, 8, memory, memory};
              const Error error = error_of([&] { run(communicator, call, Deadline::in(kLimit)); });
              CHECK_EQ(to_string(error.code()), std::string("mismatch"));
              check_contains(error.what(), "rank 0 and rank 1 chose different algorithms for all_reduce(");
              check_contains(error.what(), "VCCL_ALGO must be the same on every rank");
            });
  });
}

TEST_MAIN
