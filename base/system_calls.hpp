// The calls of the system by which this project opens descriptors, and makes files and shared memory longer.
// They set errno as the system does, and fail on purpose where a fault of a plan says so (lack.hpp).
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace base {

/// Returns a descriptor, or -1. All have FD_CLOEXEC.
int open_file(const char* path, int flags, mode_t mode = 0) noexcept;
int make_memory(const char* name, unsigned flags) noexcept;
int make_socket(int family, int type) noexcept;
int make_event_counter() noexcept;  // of eventfd(), which does not block
int make_epoll() noexcept;
int open_pidfd(pid_t pid) noexcept;

/// Do what write() and ftruncate() do.
ssize_t write_file(int fd, const void* data, std::size_t size) noexcept;
int set_length(int fd, off_t length) noexcept;
/// Returns an error number, as posix_fallocate() does.
int allocate(int fd, off_t offset, off_t length) noexcept;

}  // namespace base
