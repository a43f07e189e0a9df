// What the system is made to lack on purpose, for the next call of this project that needs it.
//
// The functions of system_calls.hpp ask. Calls of the program itself do not go through them.
#pragma once

#include <atomic>
#include <cstdint>

namespace base {

/// Room in memory and on disks (ENOSPC), or descriptors that a process may open (EMFILE).
enum class Lack : std::uint8_t { space = 1, descriptors = 2 };

namespace detail {
// The bits of what is lacking. Relaxed: the call that meets it says all there is to say.
inline std::atomic<unsigned> lacking{0};
bool meet_lack(Lack what) noexcept;
}  // namespace detail

/// Lets the next call that needs this fail.
void make_lack(Lack what) noexcept;
/// Takes back what no call has met.
void end_lacks() noexcept;

/// Returns whether this call is to fail, and sets errno if so. Each make_lack() fails one call.
inline bool lacks(Lack what) noexcept {
  return detail::lacking.load(std::memory_order_relaxed) != 0 && detail::meet_lack(what);
}

}  // namespace base
