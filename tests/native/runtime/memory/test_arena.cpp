// The arena: one sealed, sparse memfd that peers can map.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "tests/native/check.hpp"

using vdev::Arena;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::size_t backed_bytes(const Arena& arena) {
  struct stat status{};
  CHECK_EQ(fstat(arena.fd(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

}  // namespace

TEST(a_large_arena_costs_nothing) {
  Arena arena("test", std::size_t{256} << 30);
  CHECK_EQ(arena.capacity(), std::size_t{256} << 30);
  CHECK_EQ(backed_bytes(arena), std::size_t{0});
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(arena.base()) % (2 * kMiB), std::uintptr_t{0});
  CHECK(arena.contains(arena.base()));
  CHECK(arena.contains(arena.base() + arena.capacity() - 1));
  CHECK(!arena.contains(arena.base() + arena.capacity()));
  CHECK(!arena.contains(arena.base() - 1));
}

TEST(populate_backs_and_discard_gives_back) {
  Arena arena("test", 64 * kMiB);
  CHECK(arena.populate(2 * kMiB, 4 * kMiB));
  CHECK_EQ(backed_bytes(arena), 4 * kMiB);
  std::memset(arena.base() + 2 * kMiB, 7, 4 * kMiB);
  CHECK(arena.populate(2 * kMiB, 4 * kMiB));  // keeps what is there
  CHECK_EQ(static_cast<int>(arena.base()[3 * kMiB]), 7);
  arena.discard(2 * kMiB, 2 * kMiB);
  CHECK_EQ(backed_bytes(arena), 2 * kMiB);
  CHECK_EQ(static_cast<int>(arena.base()[3 * kMiB]), 0);
  CHECK_EQ(static_cast<int>(arena.base()[5 * kMiB]), 7);
}

TEST(odd_ranges_and_bad_ones) {
  Arena arena("test", 5000);
  CHECK_EQ(arena.capacity(), std::size_t{8192});
  CHECK(arena.populate(4097, 10));
  CHECK_EQ(backed_bytes(arena), std::size_t{4096});
  CHECK(arena.populate(0, 0));
  CHECK_THROWS(arena.populate(8192, 1), vdev::InvalidArgument);
  CHECK_THROWS(arena.populate(1, ~std::size_t{0}), vdev::InvalidArgument);
  CHECK_THROWS(arena.discard(0, 8193), vdev::InvalidArgument);
  CHECK_THROWS(Arena("test", 0), vdev::InvalidArgument);
}

TEST(a_capacity_that_cannot_be_had_is_refused) {
  CHECK_THROWS(Arena("test", std::size_t{1} << 50), vdev::CardError);
}

TEST(another_mapping_sees_the_same_bytes) {
  Arena arena("test", 4 * kMiB);
  void* other = mmap(nullptr, arena.capacity(), PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd(), 0);
  CHECK(other != MAP_FAILED);
  std::memcpy(arena.base() + kMiB, "card", 5);
  CHECK_EQ(std::strcmp(static_cast<char*>(other) + kMiB, "card"), 0);
  munmap(other, arena.capacity());
}

TEST(the_descriptor_is_sealed_and_not_inherited_by_exec) {
  Arena arena("test", 4 * kMiB);
  CHECK(ftruncate(arena.fd(), 4096) != 0);
  CHECK(ftruncate(arena.fd(), 8 * kMiB) != 0);
  CHECK_EQ(fcntl(arena.fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  CHECK(fcntl(arena.fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(nothing_is_left_behind) {
  int before = 0;
  {
    Arena arena("test", 4 * kMiB);
    before = arena.fd();
  }
  CHECK(fcntl(before, F_GETFD) == -1);
}

TEST_MAIN
