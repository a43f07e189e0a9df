#include "transport/system/shared_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>

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

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::protocol, base::text("a shared memory region is not mapped, because ", why));
}

/// Runs `call` and turns the exceptions of base/ into this room's.
template <class Call>
auto with_own_errors(Call call) {
  try {
    return call();
  } catch (const base::FileRefused& error) {
    refuse(error.what());
  } catch (const base::SystemError& error) {
    errno = error.code().value();
    throw_system(error.call);
  }
}

Key key_of(const FileIdentity& file) {
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
  if (unmaps_) munmap(base_, size_);
}

FileDescriptor make_shared_memory(const char* name, std::size_t size) {
  return with_own_errors([&] { return base::make_sealed_memory(name, size); });
}

FileIdentity identify_shared_memory(int fd) {
  return with_own_errors([&] { return base::identify_file(fd); });
}

FileDescriptor open_announced_memory(const std::string& path, const FileIdentity& announced) {
  return with_own_errors([&] { return base::open_announced_file(path, announced); });
}

std::shared_ptr<Mapping> map_shared_memory(int fd, std::uint64_t bytes) {
  with_own_errors([&] { base::check_sealed_memory(fd); });
  const FileIdentity file = identify_shared_memory(fd);
  if (file.bytes == 0) refuse("its file is empty");
  if (file.bytes != bytes) {
    refuse(base::text("its file has ", file.bytes, " bytes in place of the ", bytes, " that were announced"));
  }
  return find_or_make(key_of(file), [&] {
    // A card's arena is as large as the machine's memory and mostly untouched, so no swap space is reserved.
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) throw_system(base::text("mapping a shared region of ", bytes, " bytes"));
    return std::make_shared<Mapping>(static_cast<std::byte*>(base), bytes);
  });
}

std::shared_ptr<Mapping> adopt_shared_memory(int fd, std::byte* base, std::size_t size,
                                             std::shared_ptr<const void> owner) {
  const FileIdentity file = identify_shared_memory(fd);
  with_own_errors([&] { base::check_sealed_memory(fd); });
  if (size > file.bytes) {
    throw Error(ErrorCode::invalid,
                base::text("a region of ", size, " bytes was given whose file has ", file.bytes));
  }
  return find_or_make(key_of(file), [&] { return std::make_shared<Mapping>(base, size, std::move(owner)); });
}

}  // namespace vccl
