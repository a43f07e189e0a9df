#include "base/peer_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/system_calls.hpp"
#include "base/text.hpp"

namespace base {
namespace {

// These are from linux/magic.h, which not every system has.
constexpr std::uint32_t kTmpfs = 0x01021994, kHugetlbfs = 0x958458f6;

std::string file_system_text(std::uint32_t type) {
  if (type == kTmpfs) return "tmpfs";
  if (type == kHugetlbfs) return "hugetlbfs";
  char text[32];
  std::snprintf(text, sizeof text, "type 0x%08x", type);
  return text;
}

FileDescriptor open_shown(const std::string& path, int flags, const std::string& shown) {
  FileDescriptor file(base::open_file(path.c_str(), flags));
  if (!file) throw SystemError(text("opening ", shown), errno);
  return file;
}

}  // namespace

FileIdentity identify_file(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw SystemError("fstat of shared memory", errno);
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

void check_memory_kind(int fd) {
  struct statfs system;
  if (fstatfs(fd, &system) != 0) throw SystemError("fstatfs of shared memory", errno);
  const auto type = static_cast<std::uint32_t>(system.f_type);
  const long page = sysconf(_SC_PAGESIZE);
  if (type == kTmpfs && system.f_bsize == page) return;
  throw FileRefused(text("its file is on a file system of another kind: ", file_system_text(type),
                         " with pages of ", system.f_bsize, " bytes in place of tmpfs with pages of ", page));
}

void check_sealed_memory(int fd) {
  check_memory_kind(fd);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw FileRefused(
        "its file is not sealed against shrinking, growing and further seals (F_SEAL_SHRINK, F_SEAL_GROW, "
        "F_SEAL_SEAL), so its owner could make accesses to it fault");
  }
}

FileDescriptor open_announced_file(const std::string& path, const FileIdentity& announced) {
  // The file is examined through O_PATH first, because opening another kind of file for use may block or have
  // effects.
  const FileDescriptor found = open_shown(path, O_PATH, path);
  if (identify_file(found.get()) != announced)
    throw FileRefused(text(path, " is not the file that was announced"));
  check_memory_kind(found.get());
  return open_shown(text("/proc/self/fd/", found.get()), O_RDWR | O_NONBLOCK,
                    text(path, " for reading and writing"));
}

}  // namespace base
