// Copies into slots: of any length and alignment, exactly what was asked for, however it is stored.
#include "transport/slot_copy.hpp"

#include <cstring>
#include <random>
#include <vector>

#include "base/past_caches.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

void check_copies(void (*copy)(void*, const void*, std::size_t) noexcept,
                  const std::vector<std::size_t>& lengths) {
  constexpr std::size_t kMargin = 128;
  constexpr char kGuard = 0x5a;
  std::mt19937_64 random(7);
  std::size_t most = 0;
  for (const std::size_t length : lengths) most = std::max(most, length);
  std::vector<char> from(most + kMargin), to(most + 3 * kMargin);
  for (auto& byte : from) byte = char(random());
  for (const std::size_t length : lengths)
    for (int round = 0; round < 4; ++round) {
      const std::size_t begin = random() % kMargin, at = kMargin + random() % kMargin;
      std::fill(to.begin(), to.end(), kGuard);
      copy(to.data() + at, from.data() + begin, length);
      CHECK(std::memcmp(to.data() + at, from.data() + begin, length) == 0);
      for (std::size_t i = 0; i < kMargin; ++i) {
        CHECK_EQ(to[at - 1 - i], kGuard);
        if (at + length + i < to.size()) CHECK_EQ(to[at + length + i], kGuard);
      }
    }
}

const std::vector<std::size_t> kLengths = {
    0,      1,      63,    64, 65, 127, 4095, 4096, 4097, 8192, 16 * 1024, 16 * 1024 + 1, 48 * 1024 - 1,
    131072, 131073, 700001};

}  // namespace

TEST(copies_to_a_slot) {
  check_copies(copy_to_slot, kLengths);
}

TEST(copies_past_the_caches) {
  check_copies(base::copy_past_caches, kLengths);
}

TEST_MAIN
