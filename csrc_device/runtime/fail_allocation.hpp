// Makes an allocation fail on purpose.
#pragma once

namespace vdev {

/// Makes the next allocation of the program on a card of this process throw OutOfMemory. Each call counts for
/// one allocation. Thread-safe.
void fail_next_allocation() noexcept;

}  // namespace vdev
