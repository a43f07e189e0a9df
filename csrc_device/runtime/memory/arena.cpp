#include "csrc_device/runtime/memory/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/descriptor.hpp"
#include "base/sealed_memory.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack it
#endif

namespace vdev {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = std::size_t{2} << 20;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Writes to every page without changing its contents. Kernels before 5.14 do not know MADV_POPULATE_WRITE.
void touch(std::byte* from, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kPage) {
    // The write is an atomic operation without effect, because another thread may be writing to the same
    // page.
    reinterpret_cast<std::atomic<unsigned char>*>(from + at)->fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

std::byte* map_card_memory(int fd, std::size_t size) {
  // Reserves more than needed, maps the file at the first 2 MiB boundary inside, and gives the rest back.
  const std::size_t reserved = size + kAlignment;
  void* space = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) throw base::SystemError("mmap (address space)", errno);
  auto* start = static_cast<std::byte*>(space);
  const auto address = reinterpret_cast<std::uintptr_t>(space);
  std::byte* aligned = start + (round_up(address, kAlignment) - address);
  void* mapped = ::mmap(aligned, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int code = errno;
    ::munmap(space, reserved);
    throw base::SystemError("mmap", code);
  }
  if (aligned > start) ::munmap(start, static_cast<std::size_t>(aligned - start));
  std::byte* end = aligned + size;
  if (end < start + reserved) ::munmap(end, static_cast<std::size_t>(start + reserved - end));

  // MADV_DONTFORK is not set: card() refuses a forked child with a text that says what to do, while an
  // unmapped page would only kill the child. MADV_HUGEPAGE is a hint that systems with shmem_enabled=never
  // ignore.
  ::madvise(aligned, size, MADV_HUGEPAGE);
  ::madvise(aligned, size, MADV_DONTDUMP);
  return aligned;
}

bool populate_pages(std::byte* memory, std::size_t size) {
  if (size == 0) return true;
  int result;
  do {
    result = ::madvise(memory, size, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  if (errno != EINVAL) return false;
  touch(memory, size);
  return true;
}

Arena::Arena(const char* name, std::size_t capacity) : capacity_(round_up(capacity, kPage)) {
  if (capacity == 0) throw InvalidArgument(base::text("card memory '", name, "' needs a capacity above 0"));
  try {
    base::FileDescriptor file = base::make_sealed_memory(name, capacity_);
    base_ = map_card_memory(file.get(), capacity_);
    fd_ = file.release();
  } catch (const base::SystemError& error) {
    throw CardError(base::text("card memory '", name, "' of ", capacity_, " bytes: ", error.call, " failed: ",
                               std::strerror(error.code().value()), " (a smaller VDEV_MEMORY may help)"));
  }
}

Arena::~Arena() {
  ::munmap(base_, capacity_);
  ::close(fd_);
}

bool Arena::populate(std::size_t offset, std::size_t size) {
  if (offset > capacity_ || size > capacity_ - offset)
    throw InvalidArgument("populate: range beyond the card's memory");
  const std::size_t from = offset / kPage * kPage;
  const std::size_t length = round_up(offset + size, kPage) - from;
  return populate_pages(base_ + from, length);
}

void Arena::discard(std::size_t offset, std::size_t size) {
  if (offset > capacity_ || size > capacity_ - offset)
    throw InvalidArgument("discard: range beyond the card's memory");
  if (size == 0) return;
  while (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(size)) != 0) {
    if (errno != EINTR)
      throw CardError(base::text("card memory: fallocate(PUNCH_HOLE) failed: ", std::strerror(errno)));
  }
}

}  // namespace vdev
