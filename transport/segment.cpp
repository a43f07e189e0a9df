#include "transport/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace vccl {
namespace {

using Key = std::pair<dev_t, ino_t>;

struct Cache {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Mapping>> mappings;
};

// Never destroyed: a communicator may outlive the statics of this file at exit.
Cache& cache() {
  static Cache* all = new Cache;
  return *all;
}

struct Sealed {
  Key key;
  std::size_t size;
};

Sealed inspect(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw_system("fstat of a shared segment");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
    throw Error(
        ErrorCode::protocol,
        "a shared memory region is not sealed against shrinking (F_SEAL_SHRINK): its owner could make "
        "reads of it fault, so it is not mapped");
  }
  return {{status.st_dev, status.st_ino}, static_cast<std::size_t>(status.st_size)};
}

// The pair of lookup and insertion happens under the cache's mutex, so two threads never map a file twice.
template <class Make>
std::shared_ptr<Mapping> find_or_make(const Key& key, Make make) {
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  if (auto found = all.mappings.find(key); found != all.mappings.end()) {
    if (auto mapping = found->second.lock()) return mapping;
  }
  std::erase_if(all.mappings, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Mapping> mapping = make();
  all.mappings[key] = mapping;
  return mapping;
}

}  // namespace

void FileDescriptor::reset() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void throw_system(const std::string& what) {
  throw Error(ErrorCode::system, what + " failed: " + std::strerror(errno));
}

Mapping::~Mapping() {
  if (owned_) munmap(base_, size_);
}

FileDescriptor make_segment(const char* name, std::size_t size) {
  FileDescriptor fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_system("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) throw_system("ftruncate of a shared segment");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system("sealing a shared segment");
  }
  return fd;
}

SegmentIdentity identify_segment(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw_system("fstat of a shared segment");
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

std::shared_ptr<Mapping> map_segment(int fd) {
  const Sealed file = inspect(fd);
  if (file.size == 0) throw Error(ErrorCode::protocol, "a shared memory region of no bytes was handed over");
  return find_or_make(file.key, [&] {
    // NORESERVE: a card's arena is as large as the machine's memory and mostly untouched.
    void* base = mmap(nullptr, file.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED)
      throw_system("mapping a shared region of " + std::to_string(file.size) + " bytes");
    return std::make_shared<Mapping>(static_cast<std::byte*>(base), file.size, true);
  });
}

std::shared_ptr<Mapping> adopt_segment(int fd, std::byte* base, std::size_t size) {
  const Sealed file = inspect(fd);
  if (size > file.size) {
    throw Error(ErrorCode::invalid, "a region of " + std::to_string(size) +
                                        " bytes was given whose file has " + std::to_string(file.size));
  }
  return find_or_make(file.key, [&] { return std::make_shared<Mapping>(base, size, false); });
}

}  // namespace vccl
