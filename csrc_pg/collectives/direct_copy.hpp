// How bytes get from one rank's memory into another's.
#pragma once

#include <cstddef>
#include <span>

namespace vccl {

/// Copies `bytes` bytes to all of `places`, which are mostly other ranks' memory. A place that is `from`
/// itself is left alone.
void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes);

/// Copies `bytes` bytes of another rank's memory to this rank's.
void pull(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace vccl
