// Notices that the process is a forked child of the one in which an object was made.
#pragma once

namespace vdev {

/// Number of forks between the first call in an ancestor and this process. An object that remembers the
/// number it was made under and later sees another is a copy without its threads, whose locks may be held for
/// ever: it must take none and join nothing. Async-signal-safe once it has been called.
int fork_generation() noexcept;

}  // namespace vdev
