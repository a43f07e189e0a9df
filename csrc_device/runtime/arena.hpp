// A card's memory: one reserved address range backed by one sparse memfd.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vdev {

/// One region of `capacity` bytes of address space, shared-mapped from a memfd so that a peer that is
/// handed the descriptor can map the same pages. Costs no memory until pages are touched. The memfd is
/// sealed against shrinking: a peer that holds the descriptor cannot make our accesses fault.
/// Thread-safe; the object is immutable once built.
class Arena {
 public:
  /// Reserves and maps. Throws Error when the system refuses.
  Arena(const char* name, std::size_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  std::size_t capacity() const { return capacity_; }
  int fd() const { return fd_; }
  bool contains(const void* p) const {
    auto* b = static_cast<const std::byte*>(p);
    return b >= base_ && b < base_ + capacity_;
  }

  /// Backs [offset, offset + size) with pages at once (MADV_POPULATE_WRITE): one system call in place of a
  /// fault a page. False when the system has no memory left for it.
  bool populate(std::size_t offset, std::size_t size);
  /// Gives the pages of [offset, offset + size) back to the system; they read as zero afterwards.
  void discard(std::size_t offset, std::size_t size);

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  int fd_ = -1;
};

}  // namespace vdev
