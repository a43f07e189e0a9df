// Long copies and reductions, which are interleaved and stored past the caches: every byte is done once, and
// nothing else is touched.
#include <cstring>
#include <vector>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/buffers/interleave.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/families.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = std::byte((i * 2654435761u) >> 13);
  return made;
}

// Returns whether one rank has a chunk of at least `count` elements and all others have none.
bool has_one_chunk(const Case& c, int size) {
  std::size_t empty = 0, longest = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::size_t count = reference::chunk_count(c, rank, rank);
    empty += count == 0;
    longest = std::max(longest, count);
  }
  return empty == std::size_t(size) - 1 && longest >= c.count;
}

}  // namespace

TEST(interleaving_covers_everything_once) {
  for (const std::size_t bytes : {0, 1, 63, 511, 512, 2047, 2048, 2049, 4096, 10'007, 65'536, 65'599})
    for (const std::size_t head : {0, 1, 40, 63})
      for (const std::size_t ways : {1, 2, 3, 4})
        for (const std::size_t step : {64, 512, 16'384}) {
          std::vector<int> visits(bytes);
          interleave(bytes, head, ways, step, [&](std::size_t at, std::size_t length) {
            CHECK(length > 0 && length <= std::max(step, head) && at + length <= bytes);
            CHECK(at == 0 || at % 64 == head);
            for (std::size_t i = 0; i < length; ++i) ++visits[at + i];
          });
          CHECK(visits == std::vector<int>(bytes, 1));
        }
}

// The processor fetches ahead at each place by itself: so each place is gone through in order, and the places
// are as far apart as the buffer allows.
TEST(interleaving_goes_on_in_order_at_places_that_are_far_apart) {
  constexpr std::size_t kBytes = 64 * 1024, kStep = 512;
  for (const std::size_t ways : {2, 3, 4}) {
    std::vector<std::size_t> order;
    interleave(kBytes, 0, ways, kStep, [&](std::size_t at, std::size_t) { order.push_back(at); });
    // What is left when every place has had equally many blocks comes at the end.
    const std::size_t rounds = order.size() / ways;
    for (std::size_t i = 0; i < rounds * ways; ++i) {
      if (i % ways > 0) CHECK(order[i] - order[i - 1] > kBytes / ways - kStep);
      if (i >= ways) CHECK_EQ(order[i], order[i - ways] + kStep);
    }
  }
}

TEST(copies_of_any_length_and_alignment) {
  const auto source = pattern(5000);
  for (const std::size_t from : {0, 1, 16, 63})
    for (const std::size_t to : {0, 1, 8, 16, 63})
      for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 512, 4095, 4096, 4800}) {
        std::vector<std::byte> result(5000, std::byte{0x5a}), wanted = result;
        std::memcpy(wanted.data() + to, source.data() + from, bytes);
        auto also = result;
        base::store_past_caches(result.data() + to, source.data() + from, bytes);
        base::copy_past_caches(also.data() + to, source.data() + from, bytes);
        base::finish_stores();
        CHECK(result == wanted);
        CHECK(also == wanted);
        CHECK_EQ(
            (reinterpret_cast<std::uintptr_t>(result.data() + to) + base::bytes_to_line(result.data() + to)) %
                64,
            std::uintptr_t(0));
      }
}

TEST(long_pushes_to_places_of_different_alignment) {
  const std::size_t bytes = (std::size_t(4) << 20) + 12'345;
  const auto source = pattern(bytes);
  std::vector<std::byte> first(bytes + 128, std::byte{0x5a}), second = first, third = first;
  const std::vector<std::byte*> places{first.data() + 3, second.data() + 64};
  push(source.data(), places, bytes);
  pull(third.data() + 17, source.data(), bytes, true);
  const auto holds = [&](const std::vector<std::byte>& all, std::size_t at) {
    return std::memcmp(all.data() + at, source.data(), bytes) == 0 &&
           std::all_of(all.begin(), all.begin() + long(at),
                       [](std::byte b) { return b == std::byte{0x5a}; }) &&
           std::all_of(all.begin() + long(at + bytes), all.end(),
                       [](std::byte b) { return b == std::byte{0x5a}; });
  };
  CHECK(holds(first, 3));
  CHECK(holds(second, 64));
  CHECK(holds(third, 17));
}

TEST(what_leaves_the_caches_by_direct_algorithms) {
  using enum Collective;
  // Beyond these lengths the algorithms go another way: buffers/copy.hpp, direct/direct_reduction.cpp.
  const std::vector<Case> cases{{all_reduce, Dtype::float64, ReduceOp::sum, -1, 2'150'001, 3, true, 1},
                                {all_reduce, Dtype::int64, ReduceOp::sum, -1, 2'150'001, 1, false, 2},
                                {reduce, Dtype::complex128, ReduceOp::avg, 0, 1'100'001, 0, true, 4},
                                {reduce_scatter, Dtype::float64, ReduceOp::sum, -1, 1'100'001, 1, false, 5},
                                {reduce_scatter, Dtype::int64, ReduceOp::avg, -1, 1'100'001, 3, false, 12},
                                {reduce, Dtype::float64, ReduceOp::premul_sum, 1, 2'150'001, 1, false, 14},
                                {gather, Dtype::int64, ReduceOp::sum, 0, 150'001, 1, true, 6},
                                {scatter, Dtype::int64, ReduceOp::sum, 1, 150'001, 3, false, 8},
                                {broadcast, Dtype::int64, ReduceOp::sum, 1, 600'001, 7, false, 10},
                                {all_to_all, Dtype::float64, ReduceOp::sum, -1, 1'300'001, 1, false, 11}};
  for (const int size : {2, 3}) play_all({size, ~0, 1, ask_for("direct")}, cases);
}

// One rank has all the work unless the ranks divide it.
TEST(long_uneven_chunks) {
  using enum Collective;
  for (const int size : {2, 3}) {
    std::vector<Case> cases;
    for (const auto collective : {reduce_scatter, all_gather})
      for (const bool in_place : {true, false}) {
        Case c{collective, Dtype::float64, ReduceOp::sum, -1, 2'100'001, 1, in_place, 1, true};
        while (!has_one_chunk(c, size)) ++c.seed;
        cases.push_back(c);
      }
    play_all({size, ~0, 1, ask_for("direct")}, cases);
  }
}

TEST_MAIN
