// The file by which a process shows that it uses a card.
#pragma once

namespace vdev {

/// Makes the file VDEV_FIRST_USE_FILE, once in a process. Does nothing if the variable is not set. The
/// allocator calls this when it takes memory of a card. A file still exists after the process is killed. If
/// the file cannot be made, that is no error, because the computation does not depend on it. Thread-safe.
void note_first_use() noexcept;

}  // namespace vdev
