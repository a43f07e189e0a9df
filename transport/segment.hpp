// Shared memory without names: memfd segments, and their mappings shared by all groups of a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/error.hpp"

namespace vccl {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// Error(system) with the name of what failed and errno's text.
[[noreturn]] void throw_system(const std::string& what);

/// Part of the address space that shows a shared file.
class Mapping {
 public:
  Mapping(std::byte* base, std::size_t size, bool owned) : base_(base), size_(size), owned_(owned) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* base_;
  std::size_t size_;
  bool owned_;
};

/// A memfd of `size` zero bytes that cannot shrink or grow: whoever holds the descriptor cannot make
/// another's access fault. Throws Error(system).
FileDescriptor make_segment(const char* name, std::size_t size);

/// Which file a descriptor shows, and how long it is: the same for every process of a host.
struct SegmentIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;

  bool operator==(const SegmentIdentity&) const = default;
};

/// Throws Error(system).
SegmentIdentity identify_segment(int fd);

/// Maps the whole file for reading and writing. One mapping a file and process: groups that share a file
/// share the mapping. Throws Error(protocol) for a file that may shrink, Error(system) where the system
/// refuses.
std::shared_ptr<Mapping> map_segment(int fd);

/// As map_segment, for a file that this process has mapped already: ranks that are threads of this process
/// are shown that mapping, which has to stay as long as any of the groups does.
std::shared_ptr<Mapping> adopt_segment(int fd, std::byte* base, std::size_t size);

}  // namespace vccl
