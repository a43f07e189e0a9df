// The pools of the caching allocator: the program's, the scratch pool of running tasks, and private ones.
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/caching_allocator.hpp"
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
  CHECK_EQ(m.allocator.stats().allocation.allocated, std::int64_t{10});
  CHECK_EQ(m.allocator.stats().allocated_bytes.current, std::int64_t{0});
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

TEST_MAIN
