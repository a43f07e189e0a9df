// Pages for memory that is no card's, such as pinned memory, from the same budget as the cards' pages.
#pragma once

#include <cstddef>
#include <string>

namespace vdev {

/// Backs [memory, memory + size) with pages. Both are multiples of 4096. Returns false if the machine does
/// not have them; a part of the memory may have pages then. Thread-safe.
bool back_host_memory(std::byte* memory, std::size_t size);
/// Returns a sentence that says how much the machine has left, which limit that is, and what to do.
std::string explain_missing_pages();

}  // namespace vdev
