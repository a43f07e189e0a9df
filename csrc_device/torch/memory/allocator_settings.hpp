// torch's settings of allocators (PYTORCH_ALLOC_CONF), which the cards' allocator ignores.
#pragma once

namespace vdev {

/// Warns, once in a process, if PYTORCH_ALLOC_CONF has options that the cards ignore. Raises ValueError if
/// torch cannot parse the variable. Call this before a card's first allocation.
void warn_of_allocator_settings();

}  // namespace vdev
