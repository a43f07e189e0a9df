#include "base/system_calls.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/lack.hpp"

namespace base {
namespace detail {

bool meet_lack(Lack what) noexcept {
  const auto bit = static_cast<unsigned>(what);
  if ((lacking.fetch_and(~bit) & bit) == 0) return false;
  errno = what == Lack::space ? ENOSPC : EMFILE;
  return true;
}

}  // namespace detail

void make_lack(Lack what) noexcept {
  detail::lacking.fetch_or(static_cast<unsigned>(what));
}

void end_lacks() noexcept {
  detail::lacking.store(0);
}

int open_file(const char* path, int flags, mode_t mode) noexcept {
  if (lacks(Lack::descriptors)) return -1;
  // A file that is only read needs no room.
  if ((flags & O_CREAT) != 0 && lacks(Lack::space)) return -1;
  return ::open(path, flags | O_CLOEXEC, mode);
}

int make_memory(const char* name, unsigned flags) noexcept {
  return lacks(Lack::descriptors) ? -1 : ::memfd_create(name, flags | MFD_CLOEXEC);
}

int make_socket(int family, int type) noexcept {
  return lacks(Lack::descriptors) ? -1 : ::socket(family, type | SOCK_CLOEXEC, 0);
}

int make_event_counter() noexcept {
  return lacks(Lack::descriptors) ? -1 : ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

int make_epoll() noexcept {
  return lacks(Lack::descriptors) ? -1 : ::epoll_create1(EPOLL_CLOEXEC);
}

int open_pidfd(pid_t pid) noexcept {
  return lacks(Lack::descriptors) ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

ssize_t write_file(int fd, const void* data, std::size_t size) noexcept {
  return lacks(Lack::space) ? -1 : ::write(fd, data, size);
}

int set_length(int fd, off_t length) noexcept {
  return lacks(Lack::space) ? -1 : ::ftruncate(fd, length);
}

int allocate(int fd, off_t offset, off_t length) noexcept {
  return lacks(Lack::space) ? ENOSPC : ::posix_fallocate(fd, offset, length);
}

}  // namespace base
