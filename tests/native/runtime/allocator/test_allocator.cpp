// The caching allocator against a shadow model, and its rules one by one.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"

using namespace vdev;

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

std::shared_ptr<Stream> make_stream(int id = 1) {
  return std::make_shared<Stream>(-1, id, 0, "test");
}

/// A card's memory without a card.
struct Memory {
  explicit Memory(std::size_t capacity = 256 * kMiB) : arena("test", capacity), allocator(arena, 3) {}
  Arena arena;
  CachingAllocator allocator;
  std::shared_ptr<Stream> stream = make_stream();

  std::byte* get(std::size_t bytes) { return allocator.allocate(bytes, stream); }
  std::size_t backed() const {
    struct stat status{};
    CHECK_EQ(fstat(arena.fd(), &status), 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  }
  std::int64_t reserved() const { return allocator.stats().reserved_bytes.current; }
};

void check_consistent(const AllocatorStats& s) {
  for (const auto* f : {&s.allocated_bytes, &s.requested_bytes, &s.reserved_bytes, &s.active_bytes,
                        &s.inactive_split_bytes, &s.allocation, &s.segment, &s.active, &s.inactive_split}) {
    CHECK(f->current >= 0);
    CHECK(f->peak >= f->current);
    CHECK_EQ(f->allocated - f->freed, f->current);
    CHECK_EQ(f->small_pool.current + f->large_pool.current, f->current);
    CHECK_EQ(f->small_pool.allocated + f->large_pool.allocated, f->allocated);
    CHECK(f->small_pool.current >= 0 && f->large_pool.current >= 0);
    CHECK(f->small_pool.peak <= f->peak && f->large_pool.peak <= f->peak);
  }
  CHECK(s.requested_bytes.current <= s.allocated_bytes.current);
  CHECK(s.allocated_bytes.current <= s.active_bytes.current);
  CHECK(s.active_bytes.current + s.inactive_split_bytes.current <= s.reserved_bytes.current);
  CHECK(s.allocation.current <= s.active.current);
}

std::string out_of_memory_text(Memory& memory, std::size_t bytes) {
  try {
    memory.get(bytes);
  } catch (const OutOfMemory& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(sizes_and_alignment) {
  Memory m;
  std::vector<std::byte*> blocks;
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513}, 100 * kKiB, kMiB - 1, kMiB,
        kMiB + 1, 3 * kMiB + 5, 11 * kMiB, 30 * kMiB + 1}) {
    auto* p = m.get(size);
    blocks.push_back(p);
    CHECK(m.arena.contains(p) && m.arena.contains(p + size - 1));
    CHECK(m.allocator.size_of(p) >= size);
    CHECK_EQ(m.allocator.size_of(p + 1), std::size_t{0});
    const auto offset = static_cast<std::size_t>(p - m.arena.base());
    CHECK_EQ(offset % 512, std::size_t{0});
  }
  CHECK_EQ(m.allocator.size_of(blocks[0]), std::size_t{512});
  CHECK_EQ(m.allocator.size_of(blocks[3]), std::size_t{1024});
  for (auto* p : blocks) m.allocator.free(p);
  CHECK_EQ(m.allocator.size_of(blocks[0]), std::size_t{0});
  check_consistent(m.allocator.stats());
  CHECK_EQ(m.allocator.stats().allocated_bytes.current, std::int64_t{0});
}

TEST(wrong_use_is_refused) {
  Memory m;
  CHECK_THROWS(m.get(0), InvalidArgument);
  CHECK_THROWS(m.allocator.allocate(10, std::shared_ptr<Queue>()), InvalidArgument);
  auto* p = m.get(10);
  CHECK_THROWS(m.allocator.free(p + 1), InvalidArgument);
  CHECK_THROWS(m.allocator.record_stream(p + 1, m.stream), InvalidArgument);
  m.allocator.free(p);
  CHECK_THROWS(m.allocator.free(p), InvalidArgument);
}

TEST(a_freed_block_is_reused_at_once_by_its_stream_only) {
  Memory m;
  auto other = make_stream(2);
  auto* p = m.get(5 * kMiB);
  m.allocator.free(p);
  auto* q = m.allocator.allocate(5 * kMiB, other);
  CHECK(p != q);
  CHECK(m.get(5 * kMiB) == p);
}

TEST(a_busy_stream_reuses_its_own_block) {
  Memory m;
  Gate gate;
  m.stream->enqueue([&] { gate.pass(); });
  auto* p = m.get(100);
  m.allocator.free(p);
  CHECK(m.get(100) == p);
  gate.open();
  m.stream->synchronize();
}

TEST(a_recorded_stream_holds_the_block_back) {
  Memory m;
  auto other = make_stream(2);
  Gate gate;
  auto* p = m.get(100);
  m.allocator.record_stream(p, other);
  m.allocator.record_stream(p, other);     // once is enough
  m.allocator.record_stream(p, m.stream);  // its own: says nothing
  other->enqueue([&] { gate.pass(); });
  m.allocator.free(p);  // does not block
  auto stats = m.allocator.stats();
  CHECK_EQ(stats.allocation.current, std::int64_t{0});
  CHECK_EQ(stats.active.current, std::int64_t{1});
  CHECK_EQ(m.allocator.size_of(p), std::size_t{0});
  auto* q = m.get(100);
  CHECK(q != p);
  gate.open();
  other->synchronize();
  CHECK(m.get(100) == p);
  check_consistent(m.allocator.stats());
}

TEST(tasks_enqueued_after_the_free_do_not_hold_the_block_back) {
  Memory m;
  auto other = make_stream(2);
  Gate gate;
  auto* p = m.get(100);
  m.allocator.record_stream(p, other);
  m.allocator.free(p);
  other->enqueue([&] { gate.pass(); });
  CHECK(m.get(100) == p);
  gate.open();
  other->synchronize();
}

TEST(several_recorded_streams_must_all_have_passed) {
  Memory m;
  auto a = make_stream(2), b = make_stream(3);
  Gate gate_a, gate_b;
  a->enqueue([&] { gate_a.pass(); });
  b->enqueue([&] { gate_b.pass(); });
  auto* p = m.get(100);
  m.allocator.record_stream(p, a);
  m.allocator.record_stream(p, b);
  m.allocator.free(p);
  gate_a.open();
  a->synchronize();
  CHECK(m.get(100) != p);
  gate_b.open();
  b->synchronize();
  CHECK(m.get(100) == p);
}

TEST(best_fit_splits_and_neighbours_merge) {
  Memory m;
  auto* a = m.get(10 * kKiB);
  auto* b = m.get(20 * kKiB);
  auto* c = m.get(30 * kKiB);
  CHECK(b == a + 10 * kKiB);  // cut from one segment, front to back
  CHECK(c == b + 20 * kKiB);
  CHECK_EQ(m.reserved(), static_cast<std::int64_t>(2 * kMiB));
  m.allocator.free(b);
  CHECK(m.get(15 * kKiB) == b);  // the smallest that fits, not the rest of the segment
  m.allocator.free(b);
  m.allocator.free(a);
  CHECK(m.get(30 * kKiB) == a);  // a and b have become one
  m.allocator.free(a);
  m.allocator.free(c);
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.inactive_split.current, std::int64_t{0});
  CHECK_EQ(stats.inactive_split_bytes.current, std::int64_t{0});
  check_consistent(stats);
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), std::int64_t{0});
}

TEST(small_and_large_do_not_mix) {
  Memory m;
  auto* large = m.get(2 * kMiB);
  m.allocator.free(large);
  auto* small = m.get(100);
  CHECK(small < large || small >= large + 20 * kMiB);
  CHECK_EQ(m.allocator.stats().segment.current, std::int64_t{2});
}

TEST(pages_are_taken_only_for_what_is_handed_out) {
  Memory m;
  auto* small = m.get(100);
  CHECK(m.backed() <= 64 * kKiB);
  auto* middle = m.get(2 * kMiB);  // in a segment of 20 MiB
  CHECK(m.backed() >= 2 * kMiB);
  CHECK(m.backed() <= 2 * kMiB + 2 * 64 * kKiB);
  auto* large = m.get(30 * kMiB);
  CHECK(m.backed() >= 32 * kMiB);
  CHECK(m.backed() <= 33 * kMiB);
  for (auto* p : {small, middle, large}) m.allocator.free(p);
  CHECK(m.backed() >= 32 * kMiB);  // cached
  m.allocator.empty_cache();
  CHECK_EQ(m.backed(), std::size_t{0});
}

TEST(empty_cache_keeps_what_is_in_use) {
  Memory m;
  auto* kept = m.get(100);
  auto* freed = m.get(12 * kMiB);
  std::memset(kept, 5, 100);
  m.allocator.free(freed);
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), static_cast<std::int64_t>(2 * kMiB));
  CHECK_EQ(static_cast<int>(kept[99]), 5);
  m.allocator.free(kept);
}

TEST(empty_cache_waits_for_tasks_that_may_use_the_freed_block) {
  Memory m;
  Gate gate;
  auto* p = m.get(12 * kMiB);
  m.stream->enqueue([&gate, p] {
    gate.pass();
    p[0] = std::byte{1};
  });
  m.allocator.free(p);  // in the order of the stream: the task still writes to it
  std::atomic<bool> emptied{false};
  std::thread thread([&] {
    m.allocator.empty_cache();
    emptied = true;
  });
  CHECK_EQ(m.reserved(), static_cast<std::int64_t>(12 * kMiB));
  CHECK(!emptied);
  gate.open();
  thread.join();
  CHECK_EQ(m.reserved(), std::int64_t{0});
  CHECK_EQ(m.backed(), std::size_t{0});
}

TEST(empty_cache_inside_a_task_of_the_stream_does_not_hang) {
  Memory m;
  m.allocator.free(m.get(12 * kMiB));
  m.stream->enqueue([&] { m.allocator.empty_cache(); });
  m.stream->synchronize();
  m.allocator.empty_cache();
  CHECK_EQ(m.reserved(), std::int64_t{0});
}

TEST(running_out_inside_a_task_waits_for_no_stream_that_may_wait_for_the_task) {
  Memory m(64 * kMiB);
  auto other = make_stream(2);
  bool ran_out = false;
  Gate gate;
  m.allocator.free(m.get(40 * kMiB));
  other->enqueue([&] {
    gate.pass();
    try {
      m.allocator.allocate(40 * kMiB, other);
    } catch (const OutOfMemory&) {
      ran_out = true;
    }
  });
  m.stream->wait(other->record());  // busy until the task has returned
  gate.open();
  m.stream->synchronize();  // raises nothing
  CHECK(ran_out);
  CHECK(m.allocator.allocate(40 * kMiB, other));
}

TEST(out_of_memory_reads_like_cudas) {
  Memory m(64 * kMiB);
  auto* p = m.get(40 * kMiB);
  m.allocator.free(m.get(100));
  const auto text = out_of_memory_text(m, 30 * kMiB);
  CHECK(has(
      text,
      "vdev out of memory. Tried to allocate 30.00 MiB. Card 3 has a total capacity of 64.00 MiB of which "
      "24.00 MiB is free. Of the allocated memory 40.00 MiB is allocated by PyTorch, and 0 bytes is "
      "reserved by PyTorch but unallocated."));
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.num_ooms, std::int64_t{1});
  CHECK_EQ(stats.num_alloc_retries, std::int64_t{1});
  CHECK(has(out_of_memory_text(m, std::size_t{2} << 30), "Tried to allocate 2.00 GiB."));
  CHECK(has(out_of_memory_text(m, ~std::size_t{0}), "out of memory"));
  CHECK(m.get(20 * kMiB) != nullptr);  // still usable
  check_consistent(m.allocator.stats());
  m.allocator.free(p);
}

TEST(the_last_of_the_capacity_can_be_had) {
  Memory m(16 * kMiB);
  auto* p = m.get(3 * kMiB);  // a segment of 20 MiB does not fit
  auto* q = m.get(12 * kMiB);
  CHECK(p && q);
  CHECK(!out_of_memory_text(m, kMiB).empty());
}

TEST(a_retry_frees_what_other_streams_cache) {
  Memory m(64 * kMiB);
  auto other = make_stream(2);
  m.allocator.free(m.allocator.allocate(40 * kMiB, other));
  auto* p = m.get(40 * kMiB);
  CHECK(p);
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.num_alloc_retries, std::int64_t{1});
  CHECK_EQ(stats.num_ooms, std::int64_t{0});
}

TEST(a_retry_waits_for_pending_frees) {
  Memory m(64 * kMiB);
  auto other = make_stream(2);
  Gate gate;
  auto* p = m.get(40 * kMiB);
  m.allocator.record_stream(p, other);
  other->enqueue([&] { gate.pass(); });
  m.allocator.free(p);
  std::thread opener([&] { gate.open(); });
  CHECK(m.get(40 * kMiB) == p);
  opener.join();
}

TEST(a_limit_holds) {
  Memory m(64 * kMiB);
  m.allocator.set_limit(32 * kMiB);
  CHECK(has(out_of_memory_text(m, 40 * kMiB), "32.00 MiB allowed; "));
  auto* p = m.get(30 * kMiB);
  CHECK(p);
  m.allocator.set_limit(~std::size_t{0});
  CHECK(m.get(30 * kMiB));
  m.allocator.set_limit(0);
  CHECK(!out_of_memory_text(m, 1).empty());
}

TEST(the_segments_of_a_stream_that_is_gone_are_adopted) {
  Memory m;
  std::byte* p = nullptr;
  {
    auto passing = make_stream(2);
    p = m.allocator.allocate(12 * kMiB, passing);
    m.allocator.free(p);
  }
  CHECK(m.get(12 * kMiB) == p);
  CHECK_EQ(m.allocator.stats().segment.current, std::int64_t{1});
  // A block that outlives its stream is adopted too, once it is free.
  std::byte* q = nullptr;
  {
    auto passing = make_stream(3);
    q = m.allocator.allocate(14 * kMiB, passing);
  }
  m.allocator.free(q);
  CHECK(m.get(14 * kMiB) == q);
}

TEST(one_mebibyte_is_small) {
  Memory m;
  auto* p = m.get(kMiB);
  auto* q = m.get(kMiB);
  CHECK(q == p + kMiB);  // both in one small segment
  auto* large = m.get(kMiB + 1);
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.reserved_bytes.small_pool.current, static_cast<std::int64_t>(2 * kMiB));
  CHECK_EQ(stats.reserved_bytes.large_pool.current, static_cast<std::int64_t>(20 * kMiB));
  CHECK_EQ(stats.allocation.small_pool.current, std::int64_t{2});
  CHECK_EQ(stats.allocation.large_pool.current, std::int64_t{1});
  CHECK_EQ(stats.requested_bytes.large_pool.current, static_cast<std::int64_t>(kMiB + 1));
  for (auto* block : {p, q, large}) m.allocator.free(block);
  check_consistent(m.allocator.stats());
  CHECK_EQ(m.allocator.stats().allocation.small_pool.freed, std::int64_t{2});
  CHECK_EQ(m.allocator.stats().allocated_bytes.small_pool.peak, static_cast<std::int64_t>(2 * kMiB));
}

TEST(peaks_and_sums_reset) {
  Memory m;
  m.allocator.free(m.get(30 * kMiB));
  CHECK_EQ(m.allocator.stats().allocated_bytes.peak, static_cast<std::int64_t>(30 * kMiB));
  m.allocator.reset_peak_stats();
  m.allocator.reset_accumulated_stats();
  const auto stats = m.allocator.stats();
  CHECK_EQ(stats.allocated_bytes.peak, std::int64_t{0});
  CHECK_EQ(stats.reserved_bytes.peak, static_cast<std::int64_t>(30 * kMiB));
  CHECK_EQ(stats.allocated_bytes.allocated, std::int64_t{0});
  CHECK_EQ(stats.allocated_bytes.large_pool.allocated, std::int64_t{0});
  CHECK_EQ(stats.allocated_bytes.large_pool.peak, std::int64_t{0});
}

TEST(random_use_against_a_shadow_model) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    Memory m(96 * kMiB);
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<Stream>> streams{m.stream, make_stream(2), make_stream(3)};
    struct Live {
      std::size_t requested;
      unsigned char mark;
    };
    std::map<std::byte*, Live> live;
    std::int64_t requested = 0;
    for (int step = 0; step < 3000; ++step) {
      const auto what = random() % 100;
      if (what < 55) {
        const std::size_t size = 1 + random() % (random() % 10 == 0 ? 12 * kMiB
                                                 : random() % 3     ? 4 * kKiB
                                                                    : kMiB);
        std::byte* p = nullptr;
        try {
          p = m.allocator.allocate(size, streams[random() % streams.size()]);
        } catch (const OutOfMemory&) {
          for (auto& [at, block] : live) m.allocator.free(at);
          live.clear();
          requested = 0;
          continue;
        }
        const std::size_t handed_out = m.allocator.size_of(p);
        CHECK(handed_out >= size);
        CHECK(m.arena.contains(p) && m.arena.contains(p + handed_out - 1));
        const auto after = live.lower_bound(p);
        if (after != live.end()) CHECK(p + handed_out <= after->first);
        if (after != live.begin()) {
          const auto before = std::prev(after);
          CHECK(before->first + m.allocator.size_of(before->first) <= p);
        }
        const auto mark = static_cast<unsigned char>(random());
        p[0] = p[size - 1] = std::byte{mark};
        live[p] = {size, mark};
        requested += static_cast<std::int64_t>(size);
      } else if (what < 93 && !live.empty()) {
        auto it = live.begin();
        std::advance(it, static_cast<long>(random() % live.size()));
        CHECK_EQ(static_cast<unsigned char>(it->first[0]), it->second.mark);
        CHECK_EQ(static_cast<unsigned char>(it->first[it->second.requested - 1]), it->second.mark);
        if (random() % 3 == 0) m.allocator.record_stream(it->first, streams[random() % streams.size()]);
        m.allocator.free(it->first);
        requested -= static_cast<std::int64_t>(it->second.requested);
        live.erase(it);
      } else if (what < 97) {
        streams[random() % streams.size()]->enqueue([] {});
      } else if (what < 98) {
        m.allocator.empty_cache();
      }
      if (step % 50 == 0) {
        const auto stats = m.allocator.stats();
        check_consistent(stats);
        CHECK_EQ(stats.requested_bytes.current, requested);
        CHECK_EQ(stats.allocation.current, static_cast<std::int64_t>(live.size()));
        CHECK(m.backed() <= static_cast<std::size_t>(stats.reserved_bytes.current));
      }
    }
    for (auto& [at, block] : live) m.allocator.free(at);
    for (auto& stream : streams) stream->synchronize();
    m.allocator.empty_cache();
    const auto stats = m.allocator.stats();
    check_consistent(stats);
    CHECK_EQ(stats.reserved_bytes.current, std::int64_t{0});
    CHECK_EQ(stats.active.current, std::int64_t{0});
    CHECK_EQ(stats.segment.current, std::int64_t{0});
    CHECK_EQ(m.backed(), std::size_t{0});
    CHECK(m.get(96 * kMiB));  // the whole arena is one free range again
  }
}

TEST(threads_allocate_free_and_hand_over) {
  Memory m(128 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      auto mine = make_stream(10 + t);
      std::vector<std::pair<std::byte*, std::size_t>> held;
      for (int i = 0; i < 1500; ++i) {
        if (random() % 2 || held.empty()) {
          const std::size_t size = 1 + random() % (random() % 8 ? 16 * kKiB : 2 * kMiB);
          try {
            auto* p = m.allocator.allocate(size, random() % 2 ? mine : m.stream);
            p[0] = p[size - 1] = static_cast<std::byte>(t);
            held.emplace_back(p, size);
          } catch (const OutOfMemory&) {
          }
        } else {
          const auto [p, size] = held.back();
          held.pop_back();
          if (p[0] != static_cast<std::byte>(t) || p[size - 1] != static_cast<std::byte>(t)) ++wrong;
          m.allocator.record_stream(p, mine);
          if (random() % 2) {
            // Freed by a task, as a capture of a collective is.
            mine->enqueue([&m, p = p] { m.allocator.free(p); });
          } else {
            m.allocator.free(p);
          }
        }
        if (random() % 200 == 0) m.allocator.empty_cache();
      }
      mine->synchronize();
      for (const auto& [p, size] : held) m.allocator.free(p);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  m.allocator.empty_cache();
  const auto stats = m.allocator.stats();
  check_consistent(stats);
  CHECK_EQ(stats.active.current, std::int64_t{0});
  CHECK_EQ(stats.reserved_bytes.current, std::int64_t{0});
}

TEST_MAIN
