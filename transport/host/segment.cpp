#include "transport/host/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "base/sealed_memory.hpp"
#include "base/text.hpp"

namespace vccl {
namespace {

using Key = std::pair<std::uint64_t, std::uint64_t>;  // device and inode

struct Cache {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Mapping>> mappings;
};

// The cache is never destroyed, because a communicator may outlive the static objects of this file at exit.
Cache& cache() {
  static Cache* all = new Cache;
  return *all;
}

// These are from linux/magic.h, which not every system has.
constexpr std::uint32_t kTmpfs = 0x01021994, kHugetlbfs = 0x958458f6;

std::string file_system_text(std::uint32_t type) {
  if (type == kTmpfs) return "tmpfs";
  if (type == kHugetlbfs) return "hugetlbfs";
  char text[32];
  std::snprintf(text, sizeof text, "type 0x%08x", type);
  return text;
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::protocol, base::text("a shared memory region is not mapped, because ", why));
}

/// Throws unless no holder of the descriptor can make an access to the file's pages fault. What is checked
/// here cannot change afterwards: the seals fix the size, and F_SEAL_SEAL fixes the seals.
void check_segment(int fd) {
  check_segment_kind(fd);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & base::kSeals) != base::kSeals) {
    refuse(
        "its file is not sealed against shrinking, growing and further seals (F_SEAL_SHRINK, F_SEAL_GROW, "
        "F_SEAL_SEAL), so its owner could make accesses to it fault");
  }
}

Key key_of(const SegmentIdentity& file) {
  return {file.device, file.inode};
}

// The lookup and the insertion happen under the cache's mutex, so two threads never map a file twice.
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

Mapping::~Mapping() {
  if (owned_) munmap(base_, size_);
}

FileDescriptor make_segment(const char* name, std::size_t size) {
  try {
    return base::make_sealed_memory(name, size);
  } catch (const base::SystemError& error) {
    errno = error.code().value();
    throw_system(error.call);
  }
}

SegmentIdentity identify_segment(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw_system("fstat of a shared segment");
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

void check_segment_kind(int fd) {
  struct statfs system;
  if (fstatfs(fd, &system) != 0) throw_system("fstatfs of a shared segment");
  const auto type = static_cast<std::uint32_t>(system.f_type);
  const long page = sysconf(_SC_PAGESIZE);
  if (type == kTmpfs && system.f_bsize == page) return;
  refuse(base::text("its file is on a file system of another kind: ", file_system_text(type),
                    " with pages of ", system.f_bsize, " bytes in place of tmpfs with pages of ", page));
}

std::shared_ptr<Mapping> map_segment(int fd, std::uint64_t bytes) {
  check_segment(fd);
  const SegmentIdentity file = identify_segment(fd);
  if (file.bytes == 0) refuse("its file is empty");
  if (file.bytes != bytes) {
    refuse(base::text("its file has ", file.bytes, " bytes in place of the ", bytes, " that were announced"));
  }
  return find_or_make(key_of(file), [&] {
    // A card's arena is as large as the machine's memory and mostly untouched, so no swap space is reserved.
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) throw_system(base::text("mapping a shared region of ", bytes, " bytes"));
    return std::make_shared<Mapping>(static_cast<std::byte*>(base), bytes, true);
  });
}

std::shared_ptr<Mapping> adopt_segment(int fd, std::byte* base, std::size_t size) {
  const SegmentIdentity file = identify_segment(fd);
  check_segment(fd);
  if (size > file.bytes) {
    throw Error(ErrorCode::invalid,
                base::text("a region of ", size, " bytes was given whose file has ", file.bytes));
  }
  return find_or_make(key_of(file), [&] { return std::make_shared<Mapping>(base, size, false); });
}

}  // namespace vccl
