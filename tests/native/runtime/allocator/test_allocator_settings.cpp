// The sizes of blocks and segments, and what programs can set about them.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A card's memory, and settings that end with the object.
struct SetMemory {
  explicit SetMemory(const AllocatorSettings& settings, std::size_t capacity = 256 * kMiB)
      : arena("test", capacity), allocator(arena, 3) {
    set_allocator_settings(settings);
  }
  ~SetMemory() { set_allocator_settings({}); }
  Arena arena;
  CachingAllocator allocator;
  std::shared_ptr<Stream> stream = std::make_shared<Stream>(-1, 1, 0, "test");

  std::byte* get(std::size_t bytes) { return allocator.allocate(bytes, stream); }
  std::size_t reserved() const { return static_cast<std::size_t>(allocator.stats().reserved_bytes.current); }
};

}  // namespace

TEST(blocks_and_segments_have_cudas_sizes_from_1_byte_to_64_MiB) {
  std::vector<std::size_t> sizes;
  for (std::size_t power = 1; power <= 64 * kMiB; power *= 2) {
    for (const std::size_t size : {power - 1, power, power + 1, power + power / 2, power + power / 2 + 1}) {
      if (size >= 1 && size <= 64 * kMiB) sizes.push_back(size);
    }
  }
  for (const std::size_t limit : {kMiB, 10 * kMiB}) {
    for (const std::size_t size : {limit - 512, limit - 511, limit, limit + 1}) sizes.push_back(size);
  }
  for (const std::size_t size : sizes) {
    SetMemory m({});
    auto* p = m.get(size);
    const std::size_t rounded = (size + 511) / 512 * 512;
    const std::size_t segment = rounded <= kMiB       ? 2 * kMiB
                                : rounded < 10 * kMiB ? 20 * kMiB
                                                      : (rounded + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    const auto stats = m.allocator.stats();
    const bool small = rounded <= kMiB;
    // A large block is not split if the rest is at most 1 MiB.
    const std::size_t block = !small && segment - rounded <= kMiB ? segment : rounded;
    CHECK_EQ(m.allocator.size_of(p), block);
    CHECK_EQ(m.reserved(), segment);
    CHECK_EQ(stats.requested_bytes.current, static_cast<std::int64_t>(size));
    for (const auto* figures : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      CHECK_EQ((small ? figures->small_pool : figures->large_pool).current, figures->current);
    }
    CHECK_EQ(stats.inactive_split_bytes.current, static_cast<std::int64_t>(segment - block));
  }
}

TEST(sizes_are_rounded_to_divisions_of_powers_of_two) {
  AllocatorSettings settings;
  settings.power2_divisions.fill(4);
  settings.power2_divisions[1] = 0;  // from 2 to 4 MiB: as ever
  settings.power2_divisions[2] = 1;
  CHECK_EQ(block_size(100, settings), std::size_t{512});
  CHECK_EQ(block_size(1200, settings), std::size_t{1536});  // below 4 units
  CHECK_EQ(block_size(1200 << 10, settings), std::size_t{1280 << 10});
  CHECK_EQ(block_size(kMiB, settings), kMiB);
  CHECK_EQ(block_size(kMiB + 1, settings), kMiB + kMiB / 4);
  CHECK_EQ(block_size(3 * kMiB + 1, settings), 3 * kMiB + 512);
  CHECK_EQ(block_size(5 * kMiB + 1, settings), 5 * kMiB + 512);
  CHECK_EQ(block_size(33 * kMiB, settings), 40 * kMiB);
  CHECK_EQ(block_size(std::size_t{100} << 30, settings), std::size_t{112} << 30);  // as the last interval
  SetMemory m(settings);
  CHECK_EQ(m.allocator.size_of(m.get(kMiB + 1)), kMiB + kMiB / 4);
  CHECK_EQ(m.allocator.stats().requested_bytes.current, static_cast<std::int64_t>(kMiB + 1));
}

TEST(blocks_from_max_split_size_on_stay_whole) {
  SetMemory m({.max_split_size = 30 * kMiB, .max_non_split_rounding = 10 * kMiB});
  auto* large = m.get(40 * kMiB);
  CHECK_EQ(m.allocator.stats().oversize_allocations.current, std::int64_t{1});
  CHECK_EQ(m.allocator.stats().oversize_segments.current, std::int64_t{1});
  m.allocator.free(large);
  auto* middle = m.get(20 * kMiB);
  CHECK(middle != large);  // a request below the limit gets no block above it
  auto* less = m.get(30 * kMiB);
  CHECK(less != large);  // nor one that needs much less than the block has
  auto* near = m.get(32 * kMiB);
  CHECK(near == large);
  CHECK_EQ(m.allocator.size_of(near), 40 * kMiB);
  for (auto* p : {middle, less, near}) m.allocator.free(p);
  CHECK_EQ(m.allocator.stats().oversize_allocations.current, std::int64_t{0});
  m.allocator.empty_cache();
  CHECK_EQ(m.allocator.stats().oversize_segments.current, std::int64_t{0});
}

TEST(oversize_blocks_go_before_everything_else_does) {
  SetMemory m({.max_split_size = 30 * kMiB}, 128 * kMiB);
  auto* kept = m.get(20 * kMiB);
  auto* large = m.get(40 * kMiB);
  auto* larger = m.get(60 * kMiB);
  for (auto* p : {kept, large, larger}) m.allocator.free(p);
  auto* p = m.get(28 * kMiB);  // takes the place of the smallest block that is large enough
  CHECK_EQ(m.reserved(), 108 * kMiB);
  m.allocator.free(p);
  CHECK(m.get(20 * kMiB) == kept || m.reserved() == 108 * kMiB);
}

TEST(garbage_is_what_has_been_free_for_longest) {
  SetMemory m({.garbage_collection_threshold = 0.5}, 200 * kMiB);
  auto* old = m.get(40 * kMiB);
  auto* young = m.get(30 * kMiB);
  m.allocator.free(old);
  for (int i = 0; i < 10; ++i) m.allocator.free(m.get(100));
  m.allocator.free(young);
  auto* more = m.get(45 * kMiB);  // 72 MiB are reserved, which is below the threshold
  CHECK_EQ(m.reserved(), 118 * kMiB);
  auto* most = m.get(50 * kMiB);  // 118 MiB are above it
  CHECK_EQ(m.reserved(), 128 * kMiB);
  CHECK(m.get(30 * kMiB) == young);
  for (auto* p : {more, most}) m.allocator.free(p);
}

TEST(garbage_waits_for_the_tasks_that_may_use_it) {
  SetMemory m({.garbage_collection_threshold = 0.1}, 200 * kMiB);
  auto* p = m.get(40 * kMiB);
  p[0] = std::byte{7};
  bool intact = false;
  m.stream->enqueue([&] { intact = p[0] == std::byte{7}; });
  m.allocator.free(p);
  m.get(50 * kMiB);
  CHECK(intact);
  CHECK_EQ(m.reserved(), 50 * kMiB);
}

TEST_MAIN
