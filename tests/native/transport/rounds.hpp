// Rounds of verified blocks, for any group of ranks.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/native/transport/harness.hpp"

namespace vccl {

inline constexpr std::size_t kWindow = 600'000;  // three blocks, the last one uneven
inline constexpr std::size_t kBlock = Communicator::kBlockBytes;

inline int left_rank(Communicator& c) {
  return c.ring_rank((c.ring_position() + c.size() - 1) % c.size());
}

/// Sends the whole window to the right and checks what comes from the left, block by block.
inline void pass_window(Communicator& c, std::span<std::byte> window,
                        Milliseconds timeout = Milliseconds(300'000)) {
  const std::uint64_t number = c.sequence() + 1;
  for (std::size_t i = 0; i < window.size(); ++i) window[i] = pattern(c.rank(), number, i);
  Operation operation(c, {.collective = 1, .count = window.size()}, window, Deadline::in(timeout));
  for (std::size_t offset = 0; offset < window.size(); offset += kBlock) {
    const std::size_t bytes = std::min(kBlock, window.size() - offset);
    c.right().post(offset, bytes);
    const std::byte* block = c.left().take(offset, bytes);
    for (std::size_t i = 0; i < bytes; ++i) CHECK(block[i] == pattern(left_rank(c), number, offset + i));
    c.left().release();
  }
  operation.finish();
}

/// Blocks made on the way: `blocks` of growing length, more of them ahead than one.
inline void pass_committed(Communicator& c, int blocks) {
  const std::uint64_t number = c.sequence() + 1;
  Operation operation(c, {.collective = 2, .count = static_cast<std::uint64_t>(blocks)}, {},
                      Deadline::in(Milliseconds(300'000)));
  const auto length = [](int block) { return static_cast<std::size_t>(block * 997 % kBlock); };
  const auto send = [&](int block) {
    std::byte* slot = c.right().reserve();
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(slot) % 64, 0u);
    for (std::size_t i = 0; i < length(block); ++i) slot[i] = pattern(c.rank(), number, i + block);
    c.right().commit(length(block));
  };
  const int ahead = Communicator::kSlots - 1;
  for (int block = 0; block < blocks + ahead; ++block) {
    if (block < blocks) send(block);
    if (block < ahead) continue;
    const int taken = block - ahead;
    const std::byte* bytes = c.left().take_committed(length(taken));
    for (std::size_t i = 0; i < length(taken); ++i)
      CHECK(bytes[i] == pattern(left_rank(c), number, i + taken));
    c.left().release();
  }
  operation.finish();
}

/// Windows in a region, outside of any, empty, and blocks made on the way.
inline void check_rounds(Communicator& c, const TestRegion& region) {
  std::vector<std::byte> plain(kWindow + 3);
  for (int round = 0; round < 5; ++round) {
    pass_window(c, region.span(static_cast<std::size_t>(round) * 8 + 1, kWindow));
    pass_window(c, std::span(plain).subspan(static_cast<std::size_t>(round % 3), kWindow));
    pass_committed(c, 11);
    pass_window(c, {});
  }
  CHECK_EQ(c.sequence(), 20u);
  CHECK(!c.failed());
}

}  // namespace vccl
