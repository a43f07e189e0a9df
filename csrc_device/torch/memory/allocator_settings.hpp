// torch's settings of allocators (PYTORCH_ALLOC_CONF), as far as the cards' allocators have them.
#pragma once

namespace vdev {

/// Reads PYTORCH_ALLOC_CONF, once in a process, and makes the cards' allocators do what it says. Raises
/// ValueError for what torch cannot parse and for what the cards refuse, also at every later call. Call this
/// before a card's first allocation.
void read_allocator_settings();

}  // namespace vdev
