// A card's memory: one reserved address range backed by one sparse memfd.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vdev {

/// Maps a card's memfd of `size` bytes, which is a multiple of the page size, for reading and writing. The
/// address is a multiple of 2 MiB, so that the system can use huge pages. A core dump leaves the mapping out,
/// because it would be as large as the card. Throws base::SystemError.
std::byte* map_card_memory(int fd, std::size_t size);

/// Backs `size` bytes at `memory` with pages at once (MADV_POPULATE_WRITE): one system call replaces one
/// fault for each page. Both are multiples of the page size. Returns false when the system has no memory
/// left.
bool populate_pages(std::byte* memory, std::size_t size);

/// Owns one region of `capacity` bytes of address space. The region is a shared mapping of a memfd, so that a
/// peer that has the descriptor can map the same pages. The region costs no memory until its pages are
/// touched. The memfd is sealed against shrinking, so that a peer that has the descriptor cannot make
/// accesses of this process fault. Thread-safe; an arena does not change once it is built.
class Arena {
 public:
  /// Reserves and maps the region. Throws CardError when the system refuses.
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

  /// Calls populate_pages() for the pages of [offset, offset + size).
  bool populate(std::size_t offset, std::size_t size);
  /// Gives the pages of [offset, offset + size) back to the system. The range reads as zero afterwards.
  void discard(std::size_t offset, std::size_t size);

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  int fd_ = -1;
};

}  // namespace vdev
