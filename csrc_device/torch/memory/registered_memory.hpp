// The host's memory that a program has registered, so that it counts as pinned (cudaHostRegister).
#pragma once

#include <cstddef>

namespace vdev {

/// What came of a call, with the numbers that CUDA's errors have.
enum class Registered : int { done = 0, invalid = 1, already = 712, never = 713 };

/// Makes [data, data + size) count as pinned memory until it is unregistered: copies with non_blocking=True
/// are tasks of the stream. Returns `already` if a byte of the range is registered, and `invalid` for an
/// empty range. Thread-safe, as all of these.
Registered register_host_memory(const void* data, std::size_t size);
/// Ends that. Returns `never` unless `data` is the beginning of a range that is registered.
Registered unregister_host_memory(const void* data);
bool is_registered(const void* data);

}  // namespace vdev
