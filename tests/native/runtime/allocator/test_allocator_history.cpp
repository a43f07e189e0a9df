// The history of an allocator: its events, its snapshots, and recording that is switched while threads
// allocate.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "tests/native/check.hpp"

using namespace vdev;

namespace {

using Action = AllocatorEvent::Action;
using Sites = HistorySettings::Sites;

constexpr std::size_t kMiB = 1 << 20;

std::atomic<int> sites_alive{0};

/// Is a place in the program that counts itself.
struct CountedSite {
  CountedSite() { ++sites_alive; }
  ~CountedSite() { --sites_alive; }
};

CallSite gather() {
  return std::make_shared<CountedSite>();
}

HistorySettings everything(std::size_t most_events) {
  return {.sites = Sites::all, .events = true, .most_events = most_events, .skips = {}, .gather = &gather};
}

struct Memory {
  Arena arena{"test", 64 * kMiB};
  CachingAllocator allocator{arena, 3};
  std::shared_ptr<Stream> stream = std::make_shared<Stream>(-1, 7, 0, "test");

  std::byte* get(std::size_t bytes) { return allocator.allocate(bytes, stream); }
  std::vector<Action> actions() {
    std::vector<Action> result;
    for (const auto& event : allocator.snapshot(false).events) result.push_back(event.action);
    return result;
  }
};

TEST(events_come_in_order_and_old_ones_are_forgotten) {
  Memory memory;
  record_history(everything(4));
  std::byte* first = memory.get(1000);
  memory.allocator.free(first);
  CHECK(memory.actions() ==
        (std::vector{Action::segment_alloc, Action::alloc, Action::free_requested, Action::free_completed}));
  std::byte* second = memory.get(5000);
  CHECK(memory.actions() ==
        (std::vector{Action::alloc, Action::free_requested, Action::free_completed, Action::alloc}));
  const auto last = memory.allocator.snapshot(false).events.back();
  CHECK_EQ(last.address, reinterpret_cast<std::uintptr_t>(second));
  CHECK_EQ(last.size, 5120u);
  record_history(everything(2));
  memory.allocator.free(second);
  CHECK(memory.actions() == (std::vector{Action::free_requested, Action::free_completed}));
  record_history(everything(3));
  memory.get(1000);
  CHECK(memory.actions() == (std::vector{Action::free_requested, Action::free_completed, Action::alloc}));
  record_history({});
  memory.get(1000);
  CHECK_EQ(memory.actions().size(), 3u);
  memory.allocator.clear_history();
  CHECK(memory.actions().empty());
}

TEST(call_sites_live_as_long_as_they_can_be_asked_for) {
  CHECK_EQ(sites_alive.load(), 0);
  {
    Memory memory;
    record_history(
        {.sites = Sites::blocks, .events = false, .most_events = 0, .skips = {}, .gather = &gather});
    std::byte* block = memory.get(1000);
    CHECK_EQ(sites_alive.load(), 1);
    CHECK(memory.allocator.site_of(block) != nullptr);
    memory.allocator.free(block);
    // The segment was taken for the same allocation.
    CHECK_EQ(sites_alive.load(), 1);
    memory.allocator.empty_cache();
    CHECK_EQ(sites_alive.load(), 0);
    record_history(everything(1));
    for (int i = 0; i < 5; ++i) memory.allocator.free(memory.get(1000));
    memory.allocator.empty_cache();
    CHECK_EQ(sites_alive.load(), 1);  // of the last event
  }
  CHECK_EQ(sites_alive.load(), 0);
  record_history({});
}

TEST(a_snapshot_covers_the_segments) {
  Memory memory;
  std::vector<std::byte*> blocks;
  for (std::size_t bytes : {100, 1000, 70'000, 3'000'000, 18'000'000}) blocks.push_back(memory.get(bytes));
  memory.allocator.free(blocks[1]);
  const auto snapshot = memory.allocator.snapshot(false);
  CHECK_EQ(snapshot.segments.size(), 3u);
  std::size_t reserved = 0, allocated = 0;
  for (const SegmentInfo& segment : snapshot.segments) {
    std::uintptr_t at = segment.address;
    CHECK_EQ(segment.stream, 7);
    for (const BlockInfo& block : segment.blocks) {
      CHECK_EQ(block.address, at);
      at += block.size;
      if (block.state == BlockInfo::State::allocated) allocated += block.size;
    }
    CHECK_EQ(at, segment.address + segment.size);
    reserved += segment.size;
  }
  const auto stats = memory.allocator.stats();
  CHECK_EQ(reserved, static_cast<std::size_t>(stats.reserved_bytes.current));
  CHECK_EQ(allocated, static_cast<std::size_t>(stats.allocated_bytes.current));
}

TEST(recording_is_switched_while_threads_allocate) {
  {
    Memory memory;
    std::vector<std::thread> threads;
    std::atomic<int> running{3};
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 300; ++i) {
          std::byte* block = memory.get(static_cast<std::size_t>(1000 * (i % 50 + thread + 1)));
          memory.allocator.free(block);
        }
        --running;
      });
    }
    for (std::size_t most = 0; running != 0; most = (most + 7) % 64) {
      label_history(std::to_string(most));
      record_history(most % 2 == 0 ? everything(most) : HistorySettings{});
      CHECK(memory.allocator.snapshot(true).events.size() < 64);
    }
    for (auto& thread : threads) thread.join();
    record_history({});
  }
  label_history("");
  CHECK_EQ(sites_alive.load(), 0);
}

}  // namespace

TEST_MAIN
