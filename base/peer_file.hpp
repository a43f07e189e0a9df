// Files of shared memory that another process has made: which file it is, and whether it may be mapped.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/descriptor.hpp"
#include "base/sealed_memory.hpp"

namespace base {

/// Identifies the file that a descriptor refers to, and its length. All processes of a host see the same
/// values.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// Says why a file of another process is not used, as the rest of a sentence that begins "because".
struct FileRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the identity of the file that `fd` refers to. Throws SystemError.
FileIdentity identify_file(int fd);

/// Throws FileRefused unless the descriptor refers to the kind of file that make_sealed_memory() makes: a
/// tmpfs file with pages of the system's size. An access to a memfd of huge pages would raise SIGBUS when the
/// system has no huge page left. The descriptor may have been opened with O_PATH. Throws SystemError.
void check_memory_kind(int fd);

/// Throws FileRefused unless the file is of that kind and has the seals kSeals. No holder of the descriptor
/// can then make an access to the file's pages fault: the seals fix the size, and F_SEAL_SEAL fixes the
/// seals. Throws SystemError.
void check_sealed_memory(int fd);

/// Opens the file at `path`, which is an entry of another process's folder /proc/<pid>/fd, for reading and
/// writing. Throws FileRefused unless the file is `announced` and of the kind that check_memory_kind()
/// accepts: the process may have ended, and its number may belong to another process by now. Throws
/// SystemError if the file cannot be opened.
FileDescriptor open_announced_file(const std::string& path, const FileIdentity& announced);

}  // namespace base
