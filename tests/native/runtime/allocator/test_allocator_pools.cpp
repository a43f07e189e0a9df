// The pools of the caching allocator: the program's, the scratch pool of running tasks, and private ones.
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct PooledMemory {
  explicit PooledMemory(std::size_t capacity = 256 * kMiB) : arena("test", capacity), allocator(arena, 3) {}
  Arena arena;
  CachingAllocator allocator;
  std::shared_ptr<Stream> stream = std::make_shared<Stream>(-1, 1, 0, "test");

  std::byte* get(std::size_t bytes, PoolNumber pool = kProgramPool) {
    return allocator.allocate(bytes, stream, pool);
  }
  std::int64_t reserved() const { return allocator.stats().reserved_bytes.current; }
};

}  // namespace

TEST(pools_share_no_blocks) {
  PooledMemory m;
  const PoolNumber own = 7;
  m.allocator.retain_pool(own);
  for (const std::size_t bytes : {std::size_t{100}, 3 * kMiB}) {
    std::set<std::byte*> seen;
    for (const PoolNumber pool : {kProgramPool, kScratchPool, own}) {
      auto* p = m.get(bytes, pool);
      m.allocator.free(p);
      CHECK(seen.insert(p).second);
      CHECK(m.get(bytes, pool) == p);  // the pool that it was freed to has it
      m.allocator.free(p);
    }
  }
}

TEST(neighbours_of_other_pools_do_not_merge) {
  PooledMemory m;
  auto* a = m.get(12 * kMiB);
  auto* b = m.get(12 * kMiB, kScratchPool);
  m.allocator.free(a);
  m.allocator.free(b);
  auto* c = m.get(24 * kMiB);
  CHECK(c != a && c != b);
}

TEST(a_running_task_gets_nothing_that_the_tasks_behind_it_may_read) {
  PooledMemory m;
  auto* input = m.get(1000);
  std::memset(input, 7, 1000);
  Gate gate;
  std::atomic<bool> taken{false}, intact{false};
  m.stream->enqueue([&] {
    gate.pass();
    auto* scratch = m.get(1000, kScratchPool);
    taken = scratch == input;
    std::memset(scratch, 1, 1000);
    m.allocator.free(scratch);
  });
  m.stream->enqueue([&] { intact = input[0] == std::byte{7} && input[999] == std::byte{7}; });
  m.allocator.free(input);
  gate.open();
  m.stream->synchronize();
  CHECK(!taken && intact);
}

TEST(scratch_blocks_of_one_task_are_reused_by_the_next) {
  PooledMemory m;
  std::set<std::byte*> seen;
  for (int i = 0; i < 10; ++i) {
    m.stream->enqueue([&] {
      auto* scratch = m.get(5000, kScratchPool);
      seen.insert(scratch);
      m.allocator.free(scratch);
    });
  }
  m.stream->synchronize();
  CHECK_EQ(seen.size(), std::size_t{1});
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.scratch_bytes.allocated, std::int64_t{10 * 5120});
  CHECK_EQ(stats.scratch_bytes.peak, std::int64_t{5120});
  CHECK_EQ(stats.scratch_bytes.current, std::int64_t{0});
  CHECK_EQ(stats.allocated_bytes.allocated + stats.active.allocated, std::int64_t{0});
}

TEST(a_task_gets_back_the_scratch_of_its_own_busy_stream_when_the_card_is_full) {
  PooledMemory m(64 * kMiB);
  bool fits = false;
  m.stream->enqueue([&] {
    for (const std::size_t bytes : {20 * kMiB, 40 * kMiB, 60 * kMiB}) {
      m.allocator.free(m.get(bytes, kScratchPool));
    }
    fits = true;
  });
  m.stream->synchronize();
  CHECK(fits);
}

TEST(empty_cache_returns_scratch_of_a_busy_stream_and_waits_for_the_program_pool) {
  PooledMemory m;
  auto* input = m.get(30 * kMiB);
  std::memset(input, 7, 100);
  m.allocator.free(m.get(20 * kMiB, kScratchPool));
  Gate gate;
  std::atomic<bool> intact{false};
  m.stream->enqueue([&] {
    m.allocator.empty_cache();  // does not wait for its own stream, so `input` stays
    intact = m.reserved() == static_cast<std::int64_t>(30 * kMiB) && input[99] == std::byte{7};
  });
  m.allocator.free(input);
  m.allocator.empty_cache();
  CHECK(intact);
  CHECK_EQ(m.reserved(), std::int64_t{0});
}

TEST(what_a_kernel_allocates_counts_apart_until_it_is_adopted) {
  PooledMemory m;
  auto* result = m.allocator.allocate(3 * kMiB, m.stream->queue(), kProgramPool, Asker::kernel);
  auto* scratch = m.allocator.allocate(100, m.stream->queue(), kProgramPool, Asker::kernel);
  auto stats = m.allocator.stats();
  CHECK_EQ(stats.scratch_bytes.current, static_cast<std::int64_t>(3 * kMiB + 512));
  CHECK_EQ(stats.scratch_bytes.small_pool.current, std::int64_t{512});
  CHECK_EQ(stats.allocated_bytes.peak, std::int64_t{0});
  CHECK(m.allocator.is_scratch(result) && !m.allocator.is_scratch(result + 1));
  m.allocator.adopt(result);
  m.allocator.adopt(result);
  CHECK(!m.allocator.is_scratch(result) && m.allocator.is_scratch(scratch));
  m.allocator.adopt(result + 1);
  m.allocator.free(scratch);
  stats = m.allocator.stats();
  CHECK_EQ(stats.scratch_bytes.current, std::int64_t{0});
  CHECK_EQ(stats.allocated_bytes.peak, static_cast<std::int64_t>(3 * kMiB));
  CHECK_EQ(stats.requested_bytes.current, static_cast<std::int64_t>(3 * kMiB));
  CHECK_EQ(stats.active.current + stats.allocation.current, std::int64_t{2});
  m.allocator.free(result);
  stats = m.allocator.stats();
  CHECK_EQ(stats.allocated_bytes.current + stats.active_bytes.current, std::int64_t{0});
  CHECK_EQ(stats.reserved_bytes.current, static_cast<std::int64_t>(22 * kMiB));
  CHECK(m.get(3 * kMiB) == result);  // the block is an ordinary one of the program's pool
}

TEST(a_private_pool_keeps_its_memory_while_it_has_users) {
  PooledMemory m;
  constexpr PoolNumber pool = kFirstPrivatePool;
  m.allocator.retain_pool(pool);
  m.allocator.retain_pool(pool);
  auto* p = m.get(30 * kMiB, pool);
  std::memset(p, 5, 100);
  m.allocator.free(p);
  m.allocator.empty_cache();
  CHECK(p[99] == std::byte{5});
  m.allocator.release_pool(pool);
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), static_cast<std::int64_t>(30 * kMiB));
  m.allocator.release_pool(pool);
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), std::int64_t{0});
  CHECK_THROWS(m.allocator.retain_pool(kScratchPool), InvalidArgument);
  CHECK_THROWS(m.get(100, pool), InvalidArgument);
  CHECK_THROWS(m.allocator.use_pool(pool, m.stream->queue()), InvalidArgument);
}

TEST(blocks_outlive_the_users_of_their_private_pool) {
  PooledMemory m;
  constexpr PoolNumber pool = 7;
  m.allocator.retain_pool(pool);
  auto* p = m.get(3 * kMiB, pool);
  m.allocator.release_pool(pool);
  m.allocator.empty_cache();
  CHECK(m.allocator.size_of(p) >= 3 * kMiB);
  m.allocator.free(p);
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), std::int64_t{0});
}

TEST(the_memory_of_a_private_pool_waits_for_the_streams_that_use_it) {
  PooledMemory m;
  auto replays = std::make_shared<Stream>(-1, 2, 0, "replays");
  constexpr PoolNumber pool = 7;
  m.allocator.retain_pool(pool);
  auto* p = m.get(3 * kMiB, pool);
  std::memset(p, 5, 100);
  m.allocator.use_pool(pool, replays->queue());
  m.allocator.use_pool(pool, replays->queue());
  Gate gate;
  std::atomic<bool> intact{false};
  replays->enqueue([&] {
    gate.pass();
    intact = p[99] == std::byte{5};
  });
  m.allocator.free(p);
  m.allocator.release_pool(pool);
  m.stream->enqueue([&] { gate.open(); });
  m.allocator.empty_cache();
  CHECK(intact);
  CHECK_EQ(m.reserved(), std::int64_t{0});
}

TEST(running_out_of_memory_takes_private_pools_without_users_but_no_others) {
  PooledMemory m(64 * kMiB);
  constexpr PoolNumber gone = 7, kept = 8;
  m.allocator.retain_pool(gone);
  m.allocator.retain_pool(kept);
  m.allocator.free(m.get(30 * kMiB, gone));
  m.allocator.free(m.get(30 * kMiB, kept));
  m.allocator.release_pool(gone);
  auto* p = m.get(30 * kMiB);
  CHECK_THROWS(m.get(30 * kMiB), OutOfMemory);
  m.allocator.free(p);
}

TEST(another_pool_does_not_adopt_the_private_memory_of_a_stream_that_is_gone) {
  PooledMemory m(64 * kMiB);
  constexpr PoolNumber pool = 7;
  m.allocator.retain_pool(pool);
  auto captured = std::make_shared<Stream>(-1, 2, 0, "captured");
  m.allocator.free(m.allocator.allocate(40 * kMiB, captured, pool));
  captured.reset();
  CHECK_THROWS(m.get(40 * kMiB), OutOfMemory);
  m.allocator.release_pool(pool);
  m.allocator.free(m.get(40 * kMiB));
}

TEST(a_thread_allocates_from_the_pool_that_it_has_begun) {
  PooledMemory m;
  PooledMemory other;
  constexpr PoolNumber outer = 7, inner = 8;
  m.allocator.begin_pool(outer);
  CHECK_EQ(m.allocator.pool_users(outer), std::size_t{1});
  auto* a = m.get(3 * kMiB);
  other.allocator.free(other.get(100));  // the pool is that of one card
  m.allocator.begin_pool(inner);
  auto* b = m.get(100);
  m.allocator.end_pool(inner);
  std::byte* elsewhere = nullptr;
  std::thread([&] { elsewhere = m.get(3 * kMiB); }).join();
  m.allocator.end_pool(outer);
  CHECK_THROWS(m.allocator.end_pool(outer), InvalidArgument);
  std::set<PoolNumber> pools;
  for (const auto& segment : m.allocator.snapshot(false).segments) pools.insert(segment.pool);
  CHECK(pools == (std::set<PoolNumber>{kProgramPool, outer, inner}));
  CHECK_EQ(m.allocator.reserved_by_private_pool().at(outer).current, static_cast<std::int64_t>(20 * kMiB));
  CHECK_EQ(m.allocator.reserved_by_private_pool().at(inner).small_pool.peak,
           static_cast<std::int64_t>(2 * kMiB));
  for (auto* p : {a, b, elsewhere}) m.allocator.free(p);
  m.allocator.empty_cache(inner);  // nobody uses it any more
  CHECK_EQ(m.allocator.reserved_by_private_pool().at(inner).current, std::int64_t{0});
  CHECK_EQ(m.reserved(), static_cast<std::int64_t>(40 * kMiB));
  m.allocator.reset_accumulated_stats();
  CHECK_EQ(m.allocator.reserved_by_private_pool().count(inner), std::size_t{0});
}

TEST(a_pool_that_does_not_split_hands_out_whole_segments) {
  PooledMemory m;
  m.allocator.retain_pool(7, {.no_split = true});
  CHECK_EQ(m.allocator.size_of(m.get(100, 7)), 2 * kMiB);
  CHECK_EQ(m.allocator.size_of(m.get(3 * kMiB, 7)), 20 * kMiB);
}

TEST(a_pool_may_help_out_when_there_is_no_other_room) {
  for (const bool helps : {false, true}) {
    PooledMemory m(64 * kMiB);
    m.allocator.retain_pool(7, {.use_on_oom = helps});
    auto* p = m.get(40 * kMiB, 7);
    m.allocator.free(p);
    if (helps) {
      CHECK(m.get(40 * kMiB) == p);
      CHECK_EQ(m.allocator.stats().num_ooms, std::int64_t{0});
    } else {
      CHECK_THROWS(m.get(40 * kMiB), OutOfMemory);
    }
  }
}

TEST_MAIN
