// Locks on single bytes of a file that several processes have open.
#pragma once

#include <cstddef>

namespace base {

/// Changes this process's lock (F_RDLCK, F_WRLCK, F_UNLCK) on one byte of the file, without waiting. Returns
/// false if another process has a lock that excludes it.
///
/// The lock belongs to the process (F_SETLK), not to the open file (F_OFD_SETLK): a forked child would keep
/// the file's lock when its parent is gone. The process's locks on the file go with any descriptor of it that
/// the process closes, so nothing else may open the file.
bool lock_byte(int file, std::size_t byte, int type) noexcept;

}  // namespace base
