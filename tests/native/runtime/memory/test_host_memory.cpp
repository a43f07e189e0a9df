// Memory of CPU tensors that peers may map: blocks, what stays cached, and what a forked child has.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_device/runtime/memory/host_memory.hpp"
#include "tests/native/check.hpp"

using vdev::HostMemory;

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

std::size_t backed_bytes(const HostMemory& memory) {
  struct stat status{};
  CHECK_EQ(fstat(memory.arena().fd(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

int exit_code(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Forks; the child ends with 0 if `body` returns true.
pid_t fork_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool ok = false;
    try {
      ok = body();
    } catch (...) {
    }
    _exit(ok ? 0 : 1);
  }
  CHECK(child > 0);
  return child;
}

bool all_are(const std::byte* p, std::size_t size, int value) {
  for (std::size_t i = 0; i < size; ++i) {
    if (p[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

/// The process's own shared memory, as torch's allocator takes it.
std::byte* take(std::size_t bytes) {
  vdev::share_host_memory(64 * kKiB);
  return vdev::host_memory()->allocate(bytes);
}

/// A pipe over which parent and child take turns.
struct Turn {
  int ends[2];
  Turn() { CHECK_EQ(pipe(ends), 0); }
  ~Turn() {
    close(ends[0]);
    close(ends[1]);
  }
  void give() const { (void)!write(ends[1], "x", 1); }
  void take() const {
    char c;
    (void)!read(ends[0], &c, 1);
  }
};

}  // namespace

TEST(blocks_are_whole_pages_and_merge_again) {
  HostMemory memory(64 * kMiB);
  std::byte* a = memory.allocate(1);
  std::byte* b = memory.allocate(100 * kKiB + 1);
  std::byte* c = memory.allocate(kMiB);
  for (auto* p : {a, b, c}) CHECK_EQ(reinterpret_cast<std::uintptr_t>(p) % 4096, std::uintptr_t{0});
  CHECK_EQ(memory.stats().live_bytes, 4 * kKiB + 104 * kKiB + kMiB);
  CHECK_EQ(memory.stats().live_blocks, std::size_t{3});
  std::memset(b, 1, 104 * kKiB);
  CHECK(c >= b + 104 * kKiB || b >= c + kMiB);
  memory.free(b);
  memory.free(a);
  memory.free(c);
  CHECK_EQ(memory.stats().live_bytes, std::size_t{0});
  std::byte* all = memory.allocate(64 * kMiB);
  CHECK_EQ(static_cast<const void*>(all), static_cast<const void*>(memory.arena().base()));
  memory.free(all);
}

TEST(full_and_wrong_ones) {
  HostMemory memory(4 * kMiB);
  CHECK(!memory.allocate(4 * kMiB + 1));
  CHECK(!memory.allocate(std::numeric_limits<std::size_t>::max()));
  std::byte* a = memory.allocate(3 * kMiB);
  CHECK(a);
  CHECK(!memory.allocate(2 * kMiB));
  CHECK_THROWS(memory.free(a + 4096), vdev::InvalidArgument);
  std::byte stranger{};
  CHECK_THROWS(memory.free(&stranger), vdev::InvalidArgument);
  memory.free(a);
  CHECK_THROWS(memory.free(a), vdev::InvalidArgument);
  CHECK(memory.allocate(4 * kMiB));
}

TEST(a_freed_block_is_used_again_with_its_pages) {
  HostMemory memory(64 * kMiB, 16 * kMiB);
  std::byte* a = memory.allocate(8 * kMiB);
  CHECK_EQ(backed_bytes(memory), 8 * kMiB);  // all of it at once
  std::memset(a, 7, 8 * kMiB);
  memory.free(a);
  CHECK_EQ(backed_bytes(memory), 8 * kMiB);
  CHECK_EQ(memory.stats().cached_bytes, 8 * kMiB);
  std::byte* b = memory.allocate(4 * kMiB);
  CHECK_EQ(static_cast<int>(b[kMiB]), 7);
  CHECK_EQ(memory.stats().cached_bytes, 4 * kMiB);
  std::byte* c = memory.allocate(12 * kMiB);  // 4 MiB of it are there already
  CHECK_EQ(backed_bytes(memory), 16 * kMiB);
  memory.free(b);
  memory.free(c);
}

TEST(pages_beyond_the_bound_go_back) {
  HostMemory memory(256 * kMiB, 16 * kMiB);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(memory.allocate(kMiB));
  CHECK_EQ(backed_bytes(memory), 64 * kMiB);
  for (auto* block : blocks) memory.free(block);
  CHECK(backed_bytes(memory) <= 16 * kMiB);
  CHECK(backed_bytes(memory) >= 14 * kMiB);
  CHECK_EQ(memory.stats().cached_bytes, backed_bytes(memory));
  memory.empty_cache();
  CHECK_EQ(backed_bytes(memory), std::size_t{0});
  CHECK_EQ(memory.stats().cached_bytes, std::size_t{0});
  // With much handed out, more may stay.
  std::byte* large = memory.allocate(128 * kMiB);
  std::byte* small = memory.allocate(24 * kMiB);
  memory.free(small);
  CHECK_EQ(memory.stats().cached_bytes, 24 * kMiB);
  memory.free(large);
  CHECK(backed_bytes(memory) <= 16 * kMiB);
}

TEST(threads_that_allocate_and_free_for_each_other) {
  HostMemory memory(256 * kMiB, 4 * kMiB);
  std::mutex mutex;
  std::vector<std::pair<std::byte*, std::size_t>> shared;
  std::atomic<bool> ok{true};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 2000; ++i) {
      const std::size_t size = 4096 * (1 + random() % 64);
      std::byte* p = memory.allocate(size);
      const auto mark = static_cast<std::byte>(size / 4096);
      p[0] = p[size - 1] = mark;
      std::pair<std::byte*, std::size_t> other{p, size};
      {
        std::lock_guard lock(mutex);
        shared.push_back(other);
        std::swap(shared[random() % shared.size()], shared.back());
        if (shared.size() < 20) continue;
        other = shared.back();
        shared.pop_back();
      }
      const auto expected = static_cast<std::byte>(other.second / 4096);
      if (other.first[0] != expected || other.first[other.second - 1] != expected) ok = false;
      memory.free(other.first);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
  CHECK(ok.load());
  for (auto& [p, size] : shared) memory.free(p);
  CHECK_EQ(memory.stats().live_bytes, std::size_t{0});
  CHECK_EQ(memory.stats().live_blocks, std::size_t{0});
}

TEST(nothing_is_shared_before_it_is_asked_for) {
  // Of another process: the tests here share one.
  const auto child = fork_child([] {
    const bool before = !vdev::is_shared_size(std::numeric_limits<std::size_t>::max() - 1);
    return before;
  });
  CHECK_EQ(exit_code(child), 0);
  vdev::share_host_memory(64 * kKiB);
  CHECK(vdev::is_shared_size(64 * kKiB));
  CHECK(!vdev::is_shared_size(64 * kKiB - 1));
  auto* memory = vdev::host_memory();
  vdev::share_host_memory(kMiB);
  CHECK(vdev::host_memory() == memory);
  CHECK(!vdev::is_shared_size(64 * kKiB));
  std::byte* p = memory->allocate(kMiB);
  vdev::stop_sharing_host_memory();
  CHECK(!vdev::is_shared_size(64 * kMiB));
  CHECK(vdev::host_memory_of(p) == memory);
  CHECK(!vdev::host_memory_of(&memory));
  memory->free(p);
}

TEST(a_child_has_the_memory_as_it_was_and_changes_only_its_own) {
  std::byte* p = take(3 * kMiB);
  std::byte* gap = take(kMiB);
  std::byte* q = take(kMiB);
  std::memset(p, 1, 3 * kMiB);
  std::memset(q, 2, kMiB);
  vdev::host_memory()->free(gap);
  Turn parent, child;
  const auto pid = fork_child([&] {
    bool ok = !vdev::is_shared_size(kMiB) && !vdev::host_memory();
    child.give();
    parent.take();  // it has written by now
    ok = ok && all_are(p, 3 * kMiB, 1) && all_are(q, kMiB, 2);
    std::memset(p, 8, 3 * kMiB);
    std::memset(q, 9, kMiB);
    child.give();
    parent.take();
    return ok && all_are(p, 3 * kMiB, 8);
  });
  std::memset(p, 5, 3 * kMiB);  // at once: the child has its copy when fork() returns
  child.take();
  vdev::host_memory()->free(q);
  vdev::host_memory()->empty_cache();
  parent.give();
  child.take();
  CHECK(all_are(p, 3 * kMiB, 5));
  parent.give();
  CHECK_EQ(exit_code(pid), 0);
  vdev::host_memory()->free(p);
}

TEST(a_child_of_a_child) {
  std::byte* p = take(kMiB);
  std::memset(p, 1, kMiB);
  const auto pid = fork_child([&] {
    vdev::share_host_memory(64 * kKiB);  // memory of its own
    std::byte* own = vdev::host_memory()->allocate(kMiB);
    std::memset(own, 3, kMiB);
    if (vdev::host_memory_of(p) == vdev::host_memory_of(own)) return false;
    Turn turn;
    const auto grandchild = fork_child([&] {
      turn.take();
      const bool ok = all_are(p, kMiB, 1) && all_are(own, kMiB, 3);
      std::memset(p, 4, kMiB);
      std::memset(own, 4, kMiB);
      vdev::host_memory_of(p)->free(p);
      vdev::host_memory_of(own)->free(own);
      return ok && !vdev::host_memory();
    });
    std::memset(p, 2, kMiB);
    std::memset(own, 2, kMiB);
    turn.give();
    const bool ok = exit_code(grandchild) == 0 && all_are(p, kMiB, 2) && all_are(own, kMiB, 2);
    vdev::host_memory()->free(own);
    vdev::host_memory_of(p)->free(p);
    return ok;
  });
  CHECK_EQ(exit_code(pid), 0);
  CHECK(all_are(p, kMiB, 1));
  vdev::host_memory()->free(p);
}

TEST(a_child_frees_what_it_inherited_and_gets_nothing) {
  std::byte* p = take(kMiB);
  auto* memory = vdev::host_memory();
  const auto pid = fork_child([&] {
    if (memory->allocate(kMiB)) return false;
    memory->free(p);
    memory->empty_cache();
    return memory->stats().live_blocks == 0;
  });
  CHECK_EQ(exit_code(pid), 0);
  CHECK_EQ(memory->stats().live_blocks, std::size_t{1});
  std::memset(p, 1, kMiB);
  memory->free(p);
}

TEST(a_child_copies_no_pages_that_nobody_touched) {
  constexpr std::size_t kLong = HostMemory::kMostPopulated + 4 * kMiB;
  std::byte* p = take(kLong);
  std::memset(p, 1, 2 * kMiB);
  auto* memory = vdev::host_memory();
  memory->empty_cache();
  const std::size_t before = backed_bytes(*memory);
  const auto pid = fork_child([&] { return all_are(p, 2 * kMiB, 1) && p[kLong - 1] == std::byte{0}; });
  CHECK_EQ(exit_code(pid), 0);
  // The look at the last page is the one that the child's read has made.
  CHECK(backed_bytes(*memory) <= before + 64 * kKiB);
  memory->free(p);
}

TEST(forks_beside_threads_that_allocate) {
  take(4096);  // stays: there is always something to copy
  auto* memory = vdev::host_memory();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        std::byte* p = memory->allocate(128 * kKiB);
        p[0] = std::byte{1};
        memory->free(p);
      }
    });
  }
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    failed += exit_code(fork_child([&] {
                std::byte* none = memory->allocate(128 * kKiB);
                return none == nullptr && memory->stats().live_blocks >= 1;
              })) != 0;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK_EQ(failed, 0);
}

TEST_MAIN
