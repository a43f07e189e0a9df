// torch's settings of allocators (PYTORCH_ALLOC_CONF), as far as the cards' allocators have them.
#pragma once

namespace vdev {

/// Makes torch hand over what the program sets, and know the names of CUDA's own settings. Where another
/// device has done so before, as in a build of torch with CUDA, it goes on getting its settings.
void register_allocator_settings();

/// Reads PYTORCH_ALLOC_CONF, once in a process, and makes the cards' allocators do what it says. Raises
/// ValueError for what torch cannot parse and for what the cards refuse, also at every later call. Call this
/// before a card's first allocation.
void read_allocator_settings();

}  // namespace vdev
