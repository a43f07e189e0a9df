// The text of the error when an allocator has no memory left.
#pragma once

#include <cstddef>
#include <string>

#include "csrc_device/runtime/blocks/allocator_stats.hpp"
#include "csrc_device/runtime/blocks/segments.hpp"

namespace vdev {

/// Returns a text like CUDA's, for a request of `bytes` bytes on the card `card` with `capacity` bytes. It
/// names the other processes that use the card.
std::string out_of_memory_text(std::size_t bytes, int card, std::size_t capacity, const Segments& segments,
                               const AllocatorStats& stats);

}  // namespace vdev
