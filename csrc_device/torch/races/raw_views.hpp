// Tensors over a pointer to a card's memory that the program has taken, such as those of from_blob().
//
// Such a tensor does not keep the memory. While the owner lives, its accesses count as accesses of the
// owner's memory. Afterwards each of them is an error, also if the memory was given out again.
#pragma once

#include <memory>
#include <vector>

#include <c10/core/Storage.h>

#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {

/// Returns the view that a storage is, or null for any other storage. The same storage is the same view. Its
/// owner is found at the first call.
std::shared_ptr<RawView> raw_view_of(const c10::Storage& storage);

/// Returns the allocation that the accesses of a view belong to, which is the owner while it is known.
const void* block_of_raw(const Touched& touched);

/// Returns the accesses by views whose owner is gone.
std::vector<sanitizer::Race> uses_of_freed_memory(Watch& watch, Lane lane, Site site,
                                                  const std::vector<Touched>& touched);

}  // namespace vdev::races
