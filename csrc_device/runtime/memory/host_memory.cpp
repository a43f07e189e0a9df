#include "csrc_device/runtime/memory/host_memory.hpp"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "csrc_device/runtime/error.hpp"

namespace vdev {

HostMemory::HostMemory(std::size_t capacity, std::size_t most_cached)
    : arena_("vccl-host", capacity), most_cached_(most_cached) {
  free_.add({0, arena_.capacity()});
}

std::byte* HostMemory::allocate(std::size_t bytes) {
  if (bytes > arena_.capacity()) return nullptr;
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  std::unique_lock lock(mutex_);
  const auto room = free_.find(size);
  if (!room || inherited_) return nullptr;
  const HostRange block{room->at, size};
  live_.emplace(block.at, size);
  free_.remove(block);
  const auto missing = cached_.remove(block);
  live_bytes_ += size;
  lock.unlock();
  // The block belongs to this call alone, so its pages are taken without the lock.
  if (size > kMostPopulated || populate(block, missing)) return arena_.base() + block.at;
  free(arena_.base() + block.at);
  return nullptr;
}

/// Returns false when the system has no memory left.
bool HostMemory::populate(HostRange block, const std::vector<HostRange>& missing) {
  const bool ok = std::all_of(missing.begin(), missing.end(),
                              [&](HostRange part) { return arena_.populate(part.at, part.size); });
  if (!ok) discard(block);
  return ok;
}

void HostMemory::free(std::byte* p) {
  std::unique_lock lock(mutex_);
  const auto found =
      arena_.contains(p) ? live_.find(static_cast<std::size_t>(p - arena_.base())) : live_.end();
  if (found == live_.end()) throw InvalidArgument("free: not the start of a live block of host memory");
  const HostRange block{found->first, found->second};
  live_.erase(found);
  live_bytes_ -= block.size;
  if (inherited_) {
    // This drops the child's copies. The block itself belongs to the parent.
    ::madvise(p, block.size, MADV_DONTNEED);
    return;
  }
  free_.add(block);
  cached_.add(block);
  const std::size_t bound = cache_bound();
  // Gives back more than needed, so that not every free in a busy time gives pages back.
  if (cached_.bytes() > bound) give_pages_back(lock, cached_.bytes() - (bound - bound / 8));
}

std::size_t HostMemory::cache_bound() const {
  return std::max(most_cached_, live_bytes_ / 4);
}

/// Gives pages back without the lock, because that takes the system a while. Meanwhile the ranges are neither
/// free nor handed out, so that no other thread uses them.
void HostMemory::give_pages_back(std::unique_lock<std::mutex>& lock, std::size_t bytes) {
  const auto ranges = cached_.remove_highest(bytes);
  for (const auto& range : ranges) free_.remove(range);
  lock.unlock();
  for (const auto& range : ranges) discard(range);
  lock.lock();
  for (const auto& range : ranges) free_.add(range);
}

/// Gives the pages of `range` back. If the system refuses, the pages stay and the memory is used again. That
/// is no error for the thread that frees a tensor.
void HostMemory::discard(HostRange range) noexcept {
  try {
    arena_.discard(range.at, range.size);
  } catch (const CardError&) {
  }
}

void HostMemory::empty_cache() {
  std::unique_lock lock(mutex_);
  if (!inherited_) give_pages_back(lock, cached_.bytes());
}

HostMemoryStats HostMemory::stats() const {
  std::lock_guard lock(mutex_);
  return {live_bytes_, live_.size(), cached_.bytes(), arena_.capacity()};
}

/// Copies every page in use at once, and not only when the child writes to the page. A private mapping shows
/// the file's pages until they are written to, so what the parent writes would still appear in the child.
bool HostMemory::make_private() noexcept {
  inherited_ = true;
  void* mapped = ::mmap(arena_.base(), arena_.capacity(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, arena_.fd(), 0);
  if (mapped == MAP_FAILED) return false;
  ::madvise(arena_.base(), arena_.capacity(), MADV_DONTDUMP);
  std::size_t at = 0;
  for (const auto& [offset, size] : free_.all()) {  // what lies between free ranges is in use
    if (!copy_pages({at, offset - at})) return false;
    at = offset + size;
  }
  return copy_pages({at, arena_.capacity() - at});
}

/// Copies only pages that exist: copying a page that nobody has touched would make two pages, the file's and
/// the copy.
bool HostMemory::copy_pages(HostRange used) noexcept {
  const auto end = static_cast<off_t>(used.end());
  for (auto at = static_cast<off_t>(used.at); at < end;) {
    const off_t data = ::lseek(arena_.fd(), at, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return false;
    if (data < 0 || data >= end) return true;
    off_t hole = ::lseek(arena_.fd(), data, SEEK_HOLE);
    if (hole < 0) return false;
    hole = std::min(hole, end);
    // populate() makes the pages writable, which copies the pages of a private mapping.
    if (!arena_.populate(static_cast<std::size_t>(data), static_cast<std::size_t>(hole - data))) return false;
    at = hole;
  }
  return true;
}

}  // namespace vdev
