// Copies into shared memory whose old contents a peer has read, and whose new contents the peer will read.
#pragma once

#include <cstddef>

namespace vccl {

/// Copies like memcpy() into a slot, past the caches where plain stores are slow.
///
/// A store to a cache line that another core has read waits until that core has given the line up. Between
/// cores that share a cache this costs little, and the reader finds the line in that cache. Between cores
/// that share no cache this is the most expensive part: 2 GB/s were measured, against 13 to 20 past the
/// caches. Which case applies changes while a program runs, because the scheduler moves ranks and a
/// hypervisor moves cores. So each thread times its copies and chooses by the result.
///
/// The copy is visible to each thread that sees a flag that this thread sets afterwards.
void copy_to_slot(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vccl
