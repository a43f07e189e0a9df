// Unnamed shared memory: memfds, and their mappings, which all communicators of a process share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/descriptor.hpp"
#include "base/peer_file.hpp"
#include "transport/error.hpp"

namespace vccl {

using base::FileDescriptor;

/// A range of the address space at which a shared file is mapped.
class Mapping {
 public:
  /// Unmaps the memory at the end.
  Mapping(std::byte* base, std::size_t size) : base_(base), size_(size), unmaps_(true) {}
  /// Keeps the owner of memory that is mapped already.
  Mapping(std::byte* base, std::size_t size, std::shared_ptr<const void> owner)
      : base_(base), size_(size), unmaps_(false), owner_(std::move(owner)) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* base_;
  std::size_t size_;
  bool unmaps_;
  std::shared_ptr<const void> owner_;
};

/// Returns what base::make_sealed_memory() returns. Throws Error(system).
FileDescriptor make_shared_memory(const char* name, std::size_t size);

using base::FileIdentity;

/// Returns the identity of the file that `fd` refers to. Throws Error(system).
FileIdentity identify_shared_memory(int fd);

/// Returns what base::open_announced_file() returns. Throws Error(protocol), which says what differs, or
/// Error(system).
FileDescriptor open_announced_memory(const std::string& path, const FileIdentity& announced);

/// Maps the whole file for reading and writing. A process maps a file only once: communicators that share a
/// file share the mapping. `bytes` is the size that was announced for the file. Throws Error(protocol), which
/// says what differs, unless the file passes base::check_sealed_memory() and has this size. Throws
/// Error(system) if the system refuses.
std::shared_ptr<Mapping> map_shared_memory(int fd, std::uint64_t bytes);

/// Does the same as map_shared_memory() for a file that this process has already mapped at `base`. Ranks that
/// are threads of this process get that mapping, so it has to last as long as any communicator that uses it:
/// the result keeps `owner`, which may be null. Throws Error(invalid) if the mapping is longer than the file.
std::shared_ptr<Mapping> adopt_shared_memory(int fd, std::byte* base, std::size_t size,
                                             std::shared_ptr<const void> owner);

}  // namespace vccl
