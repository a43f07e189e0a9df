// Files that no rank shares, and that would end a process which maps and touches them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/native/transport/harness.hpp"

namespace vccl {

struct OddFile {
  FileDescriptor fd;
  std::uint64_t announced;  // the size that is said of it
  std::string complaint;    // what the error says about it
};

inline FileDescriptor make_odd_memfd(std::size_t size, int seals, unsigned flags = 0) {
  FileDescriptor fd(memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd) throw_system("memfd_create");
  CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  CHECK_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

/// The size of the system's huge pages, 0 where it has none.
inline std::size_t huge_page() {
  const FileDescriptor fd(memfd_create("odd", MFD_CLOEXEC | MFD_HUGETLB));
  struct stat status{};
  return fd && fstat(fd.get(), &status) == 0 ? static_cast<std::size_t>(status.st_blksize) : 0;
}

inline FileDescriptor make_named_file(const char* folder, std::size_t size) {
  std::string path = std::string(folder) + "/odd-XXXXXX";
  FileDescriptor fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd) throw_system("making a file in " + path);
  unlink(path.c_str());
  CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  return fd;
}

/// One of each kind, of `size` bytes.
inline std::vector<OddFile> odd_files(std::size_t size = 1 << 20) {
  const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const std::string unsealed = "its file is not sealed against shrinking, growing and further seals";
  std::vector<OddFile> files;
  if (const std::size_t page = huge_page()) {
    const std::size_t rounded = (size + page - 1) / page * page;
    files.push_back({make_odd_memfd(rounded, all, MFD_HUGETLB), rounded,
                     "its file is on a file system of another kind: hugetlbfs with pages of " +
                         std::to_string(page) + " bytes in place of tmpfs with pages of 4096"});
  }
  files.push_back({make_odd_memfd(size, F_SEAL_GROW | F_SEAL_SEAL), size, unsealed});
  files.push_back({make_odd_memfd(size, F_SEAL_SHRINK | F_SEAL_SEAL), size, unsealed});
  files.push_back({make_odd_memfd(size, F_SEAL_SHRINK | F_SEAL_GROW), size, unsealed});
  files.push_back(
      {make_odd_memfd(4096, all), size,
       "its file has 4096 bytes in place of the " + std::to_string(size) + " that were announced"});
  files.push_back({make_odd_memfd(0, all), 0, "its file is empty"});
  files.push_back({make_named_file("/dev/shm", size), size, unsealed});
  files.push_back({FileDescriptor(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), size, "of another kind: "});
  return files;
}

}  // namespace vccl
