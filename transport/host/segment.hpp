// Unnamed shared memory: memfd segments, and their mappings, which all communicators of a process share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/descriptor.hpp"
#include "base/sealed_memory.hpp"
#include "transport/error.hpp"

namespace vccl {

using base::FileDescriptor;

/// A range of the address space at which a shared file is mapped.
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

/// Returns what base::make_sealed_memory() returns. Throws Error(system).
FileDescriptor make_segment(const char* name, std::size_t size);

/// Identifies the file that a descriptor refers to, and its length. All processes of a host see the same
/// values.
struct SegmentIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;

  bool operator==(const SegmentIdentity&) const = default;
};

/// Returns the identity of the file that `fd` refers to. Throws Error(system).
SegmentIdentity identify_segment(int fd);

/// Throws Error(protocol), which says what differs, unless the descriptor refers to the kind of file that
/// make_segment() makes: a tmpfs file with pages of the system's size. An access to a memfd of huge pages
/// would raise SIGBUS when the system has no huge page left. The descriptor may have been opened with O_PATH.
/// Throws Error(system) if the system cannot tell.
void check_segment_kind(int fd);

/// Maps the whole file for reading and writing. A process maps a file only once: communicators that share a
/// file share the mapping. `bytes` is the size that was announced for the file. Throws Error(protocol), which
/// says what differs, unless the file is of the right kind (check_segment_kind()), is sealed as
/// make_segment() seals it and has this size. Throws Error(system) if the system refuses.
std::shared_ptr<Mapping> map_segment(int fd, std::uint64_t bytes);

/// Does the same as map_segment() for a file that this process has already mapped at `base`. Ranks that are
/// threads of this process get that mapping, so it has to last as long as any communicator that uses it.
/// Throws Error(invalid) if the mapping is longer than the file.
std::shared_ptr<Mapping> adopt_segment(int fd, std::byte* base, std::size_t size);

}  // namespace vccl
